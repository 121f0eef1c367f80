// What each metric is, and what to worry about: the table of the run directory's page, word for word.
import { file } from "./api.js";

let known = null;

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
