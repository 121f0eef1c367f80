// Formulas on a line: `_` sets the letter or the {letters} after it lower, `^` higher.
import { h } from "./dom.js";

// After one letter or a bracket: the _ within a word, such as clip_low, is a sign of that word.
const MOVED = /(?<=(?<![\p{L}\d_])\p{L}|[)\]}])([_^](?:\{[^}]*\}|[\p{L}\d]))/u;
const TAG = { "_": "sub", "^": "sup" };

/** The text as nodes, with what is lower or higher in its place. */
export function formula(text) {
  return text.split(MOVED).map((part, place) => (place % 2 ? h(TAG[part[0]], {}, formula(inner(part.slice(1)))) : part));
}

function inner(part) {
  return part.startsWith("{") ? part.slice(1, -1) : part;
}
