// What each metric is, and what to worry about: the table of the run directory's page, word for word.

let asked = null;

/** A function from a metric's name to its definition {label, unit, is, worry, link}; undefined for one that has none. */
export async function definitions() {
  asked ??= fetch("static/definitions.json").then((answer) => answer.json());
  const known = new Map(Object.entries(await asked));
  return (name) => known.get(name) ?? known.get(pattern(name));
}

function pattern(name) {
  if (/^rewards\/.+\/mean$/.test(name)) return "rewards/NAME/mean";
  if (/^pass_at_\d+$/.test(name)) return "pass_at_8";
  return name.endsWith("_share") ? "NAME_share" : undefined;
}

/** One sentence: what it is, and what to worry about. */
export function sentence({ is, worry }) {
  return `${is[0].toUpperCase()}${is.slice(1)}; worry ${worry}.`;
}
