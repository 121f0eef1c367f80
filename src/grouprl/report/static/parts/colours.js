// Colours and dashes of lines, read from the style sheet, so that a change of theme changes the charts too.

const COLOURS = 6;
const DASHES = [[], [7, 4], [2, 3]];
const DARK = matchMedia("(prefers-color-scheme: dark)");

let known = new Map();
DARK.addEventListener("change", () => { known = new Map(); });

/** How line number `index` is drawn: a variable of the style sheet, and a dash that tells apart what shares a colour. */
export function look(index) {
  return { variable: `--series-${(index % COLOURS) + 1}`, dash: DASHES[Math.floor(index / COLOURS) % DASHES.length] };
}

/** The value of a variable of the style sheet, in the theme of now. */
export function colour(variable) {
  const styles = () => getComputedStyle(document.documentElement);
  if (!known.has(variable)) known.set(variable, styles().getPropertyValue(variable).trim());
  return known.get(variable);
}

/** The same, let through: `opacity` from 0 to 1. */
export function faint(variable, opacity) {
  return colour(variable) + Math.round(255 * opacity).toString(16).padStart(2, "0");
}

/** Calls back when the theme changes; gives what ends that. */
export function onTheme(listener) {
  DARK.addEventListener("change", listener);
  return () => DARK.removeEventListener("change", listener);
}
