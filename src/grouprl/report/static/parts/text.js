import { Gone } from "./api.js";
import { h } from "./dom.js";

// What would turn text around, hide it, move the cursor or take room without being seen: controls (ANSI's escape among
// them), format signs (bidi, zero widths, tags), line separators, and fillers that look like nothing.
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\u2028\u2029\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]/gu;

/** The text with everything that cannot be seen, or that changes how the rest is seen, shown by its number. */
export function visible(text) {
  return String(text).replace(UNSEEN, (sign) => `\u27e8${sign.codePointAt(0).toString(16).padStart(4, "0")}\u27e9`);
}

/** Text that somebody else wrote (a model, a data set), as text. */
export function written(text, attributes = {}) {
  return h("span", { ...attributes, class: `text ${attributes.class ?? ""}`.trim() }, visible(text));
}

/** A number as people read it, with a true minus; a dash for none. `numbers.js` has those of a written-out arithmetic. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
  if (value < 0) return `\u2212${number(-value, digits)}`;
  if (Number.isInteger(value)) return (value || 0).toLocaleString("en"); // 0 for the other zero as well
  if (value < 1e-3 || value >= 1e7) return value.toExponential(1);
  return value.toLocaleString("en", { maximumFractionDigits: value >= 100 ? 0 : value >= 10 ? 1 : digits });
}

/** The same with a plus above 0. */
export function signed(value, digits = 3) {
  return value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

export function percent(share) {
  return share === null || share === undefined ? "\u2013" : `${number(100 * share, 1)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "\u2013";
  if (seconds < 120) return `${number(seconds, 1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// What went wrong, where it has to stay in sight.

/** The sentence of an error; where the lab gave no answer, with a button that tries again. */
export function trouble(error, again) {
  const button = error instanceof Gone ? h("p", {}, h("button", { type: "button", onclick: again }, "Try again")) : null;
  return h("div", { class: "trouble", role: "alert" }, h("p", { class: "error" }, visible(error.message)), button);
}
