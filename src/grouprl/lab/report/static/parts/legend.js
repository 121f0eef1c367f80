// Names the lines of a chart, with their values where the cursor is, or at the end.
import { h, s, toggle, write } from "./dom.js";
import { between, shown, visible } from "./text.js";

const NAMED = 4; // more lines than these are distinguished by color alone, where something else names them

/** A stroke in a line's color and dash, or a square for an area. */
export function swatch(look, area = false) {
  const mark = area
    ? s("rect", { x: 2, y: 2, width: 14, height: 8, rx: 2 })
    : s("line", { x1: 0, x2: 18, y1: 6, y2: 6, "stroke-width": 3, "stroke-dasharray": look.dash.join(" ") || null });
  mark.style[area ? "fill" : "stroke"] = `var(${look.variable})`;
  return s("svg", { class: "swatch", width: 18, height: 12, viewBox: "0 0 18 12", "aria-hidden": "true" }, mark);
}

/**
 * The legend of a chart.
 *
 * `switched(line, on)` is called when a line is switched off or on; without it nothing can be. `show(at, values,
 * digits, intervals)` shows where the values are from, the value of each line, and where there is one its interval.
 */
export function legend({ lines, stacked, unit, fixed }, switched) {
  const at = h("span", { class: "at" });
  const values = lines.map(() => h("b", {}));
  const items = lines.map((line, place) => {
    const name = h("span", { class: fixed && lines.length > NAMED ? "unseen" : null }, visible(line.label));
    const inside = [swatch(line.look, stacked), name, values[place]];
    return switched ? toggle(true, (on) => switched(place, on), inside, { class: "item" })
      : h("span", { class: "item", title: fixed ? visible(line.label) : null }, inside);
  });
  // An area lies above those before it, so its name stands before theirs.
  const element = h("div", { class: "chart-legend" }, stacked ? items.toReversed() : items, at);
  const show = (where, found, digits, intervals = []) => {
    write(at, where);
    found.forEach((value, place) => write(values[place], withInterval(shown(value, unit, digits), intervals[place], unit)));
  };
  return { element, show };
}

/** A value that is written already, with the interval around it in the same unit. */
export function withInterval(value, interval, unit) {
  return interval ? `${value} (${between(interval, unit)})` : value;
}

// Colors and dashes of lines, read from the style sheet, so that a change of theme changes the charts too.

const COLORS = 6;
const DASHES = [[], [7, 4], [2, 3]];
const DARK = matchMedia("(prefers-color-scheme: dark)");

let known = new Map();
DARK.addEventListener("change", () => document.dispatchEvent(new Event("theme")));
document.addEventListener("theme", () => { known = new Map(); });

/** How line number `index` is drawn: a variable of the style sheet, and a dash that distinguishes what shares a color. */
export function look(index) {
  return { variable: `--series-${(index % COLORS) + 1}`, dash: DASHES[Math.floor(index / COLORS) % DASHES.length] };
}

/** The value of a variable of the style sheet, in the theme of now. */
export function color(variable) {
  const styles = () => getComputedStyle(document.documentElement);
  if (!known.has(variable)) known.set(variable, styles().getPropertyValue(variable).trim());
  return known.get(variable);
}

/** The same, let through: `opacity` from 0 to 1. */
export function faint(variable, opacity) {
  return color(variable) + Math.round(255 * opacity).toString(16).padStart(2, "0");
}

/** Calls back when the theme changes; gives what ends that. */
export function onTheme(listener) {
  document.addEventListener("theme", listener);
  return () => document.removeEventListener("theme", listener);
}
