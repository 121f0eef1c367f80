// What each metric is, and what to worry about: the table of the run directory's page, word for word.
import { file } from "./api.js";
import { h } from "./dom.js";

let known = null;

/** The charts of a run's page by section: see run/plan.js. */
export function chartSections() {
  return file("charts.json");
}

/** A function from a metric's name to its definition {label, unit, is, worry, more?}; undefined for one that has none. */
export async function definitions() {
  known ??= await read();
  return (name) => known.get(name) ?? known.get(pattern(name));
}

async function read() {
  const [found, sections] = await Promise.all([file("definitions.json"), file("sections.json")]);
  return new Map(Object.entries(found).map(([name, one]) => [name, { ...one, more: sections[one.more] }]));
}

function pattern(name) {
  if (/^rewards\/.+\/mean$/.test(name)) return "rewards/NAME/mean";
  if (/^pass_at_\d+$/.test(name)) return "pass_at_8";
  return name.endsWith("_share") ? "NAME_share" : undefined;
}

/** What it is, and what to worry about. */
export function sentences({ is, worry }) {
  return `${is[0].toUpperCase()}${is.slice(1)}. Worry ${worry}.`;
}

// Formulas on a line: `_` sets the letter or the {letters} after it lower, `^` higher.

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
