// Which charts a run has: those of charts.json whose metrics it recorded, and one for each metric that none of them shows.
//
// A chart is drawn when its first metric was recorded; `every` stands for the metrics of that form. `about` is the metric
// whose definition it carries, if not the first. `zero`: values are never below 0. `whole`: shares of a whole, from 0 to 1.
// `stays`: in its place also where it never moves. `gaps`: absent where nothing was learned, not where it is 0.
import { look } from "../legend.js";

/** What a page says in place of what needs a verifier. */
export const UNJUDGED = "This task has no verifier, or none among this run's rewards: no completion is marked correct, so there is no accuracy, on training problems or on "
  + "held-out ones, and no group is solved or hopeless.";

const ORDER = ["rollout", "reward", "reference", "learn"]; // of a step
// Hopeless, mixed and solved: the same colors wherever they stand.
const STANDING = [look(1), look(0), look(2)];

const JUDGED = "Results"; // the first section with charts of what a verifier says

/** Whether a run has made steps, and no verifier has said anything of them. */
export function noVerifier(series) {
  return series.length > 0 && series.last("accuracy") === null && series.last("frac_unverified") === null;
}

/**
 * The charts of a run as {title, explained, charts, unjudged}: each chart has id, title, unit, about, lines, and
 * `columns(series)`; `unjudged` says that charts are missing here for want of a verifier.
 */
export function plan(sections, names, measures, find, unjudged = false) {
  const shown = new Set();
  const shownSections = sections.map(({ title, explained, charts: specs }) => {
    const held = [true, false].map((own) => measures.filter((name) => (name === "reward") === own));
    const charts = specs.flatMap((spec) => (spec.evaluations ? held.map((own) => heldOut(spec, own, find)) : chart(spec, names, shown, find)));
    return { title, explained, charts: charts.filter(Boolean), unjudged: unjudged && title === JUDGED };
  });
  const more = names.filter((name) => !shown.has(name)).map((name) => chart({ lines: { [name]: name.split("/").at(-1) } }, names, shown, find));
  return [...shownSections, { title: "More", charts: more }].filter(({ charts }) => charts.length);
}

function chart(spec, names, shown, find) {
  const form = new RegExp(spec.every);
  const every = () => names.filter((name) => form.test(name)).map((name) => [name, form.exec(name)[1]]);
  const named = spec.every ? every() : Object.entries(spec.lines).filter(([name]) => names.includes(name));
  const first = spec.every ? named[0]?.[0] : Object.keys(spec.lines)[0];
  if (!named.length || !names.includes(first) || shown.has(first)) return null;
  for (const [name] of named) shown.add(name);
  for (const name of spec.also ?? []) shown.add(name);
  const about = spec.about ?? first;
  const definition = find(about);
  const lines = named.map(([, label], place) => ({ label, look: look(place) }));
  const columns = (series) => named.map(([name]) => series.column(name));
  return {
    ...spec, lines, columns, ...AREAS[spec.areas]?.(named), definition, stacked: Boolean(spec.areas),
    id: named.map(([name]) => name).join(" "),
    title: spec.title ?? definition?.label ?? first, unit: spec.unit ?? definition?.unit ?? "",
  };
}

function heldOut(spec, measures, find) {
  if (!measures.length) return null;
  const label = (measure) => (measure === "greedy_accuracy" ? "greedy" : measure.replace("pass_at_", "pass@"));
  const own = measures[0] === "reward", definition = find(own ? "eval/reward" : "greedy_accuracy");
  return {
    ...spec, whole: !own, measures, id: `held-out ${measures.join(" ")}`, definition, title: definition.label,
    unit: definition.unit, bands: true, lines: measures.map((measure, place) => ({ label: label(measure), look: look(place) })),
  };
}

const standing = (middle, columns) =>
  ({ lines: ["hopeless", middle, "solved"].map((label, place) => ({ label, look: STANDING[place] })), columns });

function shares(series) {
  const [hopeless, solved] = [series.column("frac_hopeless"), series.column("frac_solved")];
  // Shares of a whole: what rounding leaves below 0 is nothing.
  const rest = (share, other) => (share === null || other === null ? null : Math.max(0, 1 - share - other));
  return [hopeless, hopeless.map((share, at) => rest(share, solved[at])), solved];
}

/** Seconds by part, the rest of the step last. */
function time(found) {
  const turn = ([, part]) => (ORDER.includes(part) ? ORDER.indexOf(part) : ORDER.length);
  const named = found.toSorted((a, b) => turn(a) - turn(b));
  return {
    lines: [...named.map(([, part]) => part), "other"].map((label, place) => ({ label, look: look(place) })),
    columns: (series) => {
      const parts = named.map(([name]) => series.column(name).map((value) => value ?? 0));
      const spent = (at) => parts.reduce((sum, part) => sum + part[at], 0);
      return [...parts, series.column("time/total").map((total, at) => Math.max(0, (total ?? 0) - spent(at)))];
    },
  };
}

const AREAS = {
  groups: () => standing("mixed", shares),
  standing: () => standing("at the edge", (series) => ["hopeless", "edge", "solved"].map((name) => series.column(`curriculum/${name}`))),
  time,
};

/** The held-out measures: the mean reward where it is `own`; accuracy greedily, by one completion, and by the best of the most. */
export function measuresOf(evaluations, own) {
  const names = new Set(evaluations.flatMap((row) => Object.keys(row)));
  const found = [...names].map((name) => /^pass_at_(\d+)$/.exec(name)?.[1]).filter(Boolean);
  const counts = found.map(Number).sort((a, b) => a - b);
  const sampled = counts.length ? [...new Set([counts[0], counts.at(-1)])].map((count) => `pass_at_${count}`) : [];
  return [...(own ? ["reward"] : []), "greedy_accuracy", ...sampled].filter((name) => names.has(name));
}
