// Bars of signed numbers: one row each, with its name and its number as text.
import { column } from "../numbers.js";
import { drawing, extent, line, place, rect, text } from "./draw.js";

const ROW = 24;
const NAME = 30; // pixels for the names of rows
const NUMBER = 62;

/**
 * Rows of {name, value, text?, said?}: text is what stands beside the bar if not the value itself; value null = there is
 * none, and `said` tells why. `range` fixes the scale, so that drawings side by
 * side can be compared; `names` is the room for names in pixels. Gives {element, update(rows)}.
 */
export function signedBars(title, bare, { range = null, names = NAME } = {}) {
  const rows = withTexts(bare);
  let shown = { rows, range };
  const picture = drawing(spoken(title, rows), (width) => draw(width, names, shown.rows, shown.range), { class: "bars" });
  return {
    element: picture.element,
    update(later, nextRange = range) {
      const next = withTexts(later);
      shown = { rows: next, range: nextRange };
      picture.svg.setAttribute("aria-label", spoken(title, next));
      picture.redraw();
    },
  };
}

function withTexts(rows) {
  const texts = column(rows.map(({ value }) => value), { sign: true });
  return rows.map((row, place) => ({ ...row, text: row.text ?? (Number.isFinite(row.value) ? texts[place] : row.said ?? "none") }));
}

function spoken(title, rows) {
  return `${title}: ${rows.map(({ name, text: number }) => `${name} ${number}`).join(", ")}`;
}

function draw(width, names, rows, range) {
  const [low, high] = range ?? extent(rows.map((row) => row.value));
  const height = rows.length * ROW + 8;
  const x = place(low, high, names + 4, width - NUMBER - 6);
  const zero = low === high ? (names + width - NUMBER) / 2 : x(0);
  const drawn = rows.map((row, index) => bar(row, 4 + index * ROW, zero, low === high ? zero : x(row.value ?? 0), [names, width]));
  return [height, line(zero, 0, zero, height, "axis"), ...drawn];
}

function bar(row, top, zero, end, [names, width]) {
  const kind = row.value > 0 ? "plus" : row.value < 0 ? "minus" : "none";
  return [
    text(names - 4, top + ROW / 2 + 4, row.name, { class: "name", "text-anchor": "end" }),
    rect(Math.min(zero, end), top + 3, Math.abs(end - zero), ROW - 6, `bar ${kind}`, { rx: 2 }),
    text(width - 2, top + ROW / 2 + 4, row.text, { class: "value", "text-anchor": "end" }),
  ];
}
