// Runs that differ in nothing but their seed, as one: means, with bands from the lowest to the highest.
import { look } from "../legend.js";
import { intervalName, Series } from "../series.js";

const OWN = { seed: null, name: null, runs_dir: null };

/** The runs of a page in groups that differ in their seed. */
export function bySeed(runs) {
  const groups = new Map();
  for (const one of runs) {
    const key = JSON.stringify({ ...one.run.config, ...OWN });
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  return [...groups.values()];
}

/** Each group as a run that a page draws; it is not followed further. */
export function overSeeds(groups) {
  return groups.map((members, place) => ({
    id: members[0].id + (members.length > 1 ? ` and ${members.length - 1} more` : ""), look: look(place), on: true,
    run: { ...members[0].run, status: "finished" }, series: joined(members.map(({ series }) => series)),
    evaluations: evaluated(members.map(({ evaluations }) => evaluations)),
  }));
}

/** The steps that all have. */
function joined(all) {
  const places = all.map(({ step }) => new Map(step.map((one, at) => [one, at])));
  const steps = all[0].step.filter((step) => places.every((known) => known.has(step)));
  const over = (columns, pick) => steps.map((step) => pick(columns.map((values, run) => values[places[run].get(step)])));
  const axis = (name) => over(all.map((one) => one[name]), mean);
  const names = [...new Set(all.flatMap((one) => one.names()))];
  const each = (pick) => Object.fromEntries(names.map((name) => [name, over(all.map((one) => one.column(name)), pick)]));
  const series = new Series();
  series.fill({ step: steps, tokens: axis("tokens"), seconds: axis("seconds"), columns: each(mean) });
  return Object.assign(series, { low: each(lowest), high: each(highest) });
}

/** The evaluations of the steps that all have: of each measure the mean, and the lowest and highest as its interval. */
function evaluated(all) {
  const rows = all[0].map(({ step }) => all.map((own) => own.find((row) => row.step === step))).filter((same) => same.every(Boolean));
  return rows.map((same) => {
    const measures = Object.keys(same[0]).filter((name) => typeof same[0][name] === "number" && name !== "step");
    const of = (name) => same.map((row) => row[name]);
    return { step: same[0].step, ...Object.fromEntries(measures.flatMap((name) =>
      [[name, mean(of(name))], [intervalName(name), [lowest(of(name)), highest(of(name))]]])) };
  });
}

const numbers = (values) => values.filter((value) => typeof value === "number");
const some = (pick) => (values) => (numbers(values).length ? pick(numbers(values)) : null);
const mean = some((values) => values.reduce((sum, value) => sum + value, 0) / values.length);
const lowest = some((values) => Math.min(...values)), highest = some((values) => Math.max(...values));
