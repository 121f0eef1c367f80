// A comparison that `grouprl compare` made: its variants as what the charts draw, and the tables of what they came to.
import { live, ofRun } from "../api.js";
import { h, s } from "../dom.js";
import { stackedBar } from "../explain/bars.js";
import { look, swatch } from "../legend.js";
import { sumOf, table } from "../table.js";
import { Series } from "../series.js";
import { between, counted, fixed, number, percent, share, visible } from "../text.js";

const SAMPLED = { sampled_accuracy: "sampled, last tenth of training", pass_at_1: "pass@1", pass_at_8: "pass@8" };
const WIDE = 150; // pixels of a drawn interval

/** The variants as runs: a line is the mean over seeds, its band reaches from the lowest seed to the highest. */
export function variantsOf({ name: comparison, variants }) {
  return variants.map((variant, place) => {
    const series = new Series();
    series.fill(variant.series);
    const { low, high } = variant.series;
    const run = { status: "finished", config: Object.fromEntries(variant.settings.map((one) => one.split(/=(.*)/s))) };
    return { id: variant.name, comparison, run, series: Object.assign(series, { low, high }), look: look(place), on: true,
      evaluations: variant.evaluations };
  });
}

/** What came of it in a sentence, and what its runs have in common. */
export function comparisonHead({ verdict, about, seeds, variants }) {
  const made = variants.map(({ runs }) => Object.keys(runs).length);
  const facts = [...Object.entries(about).map(([name, value]) => `${name} ${value}`),
    `${sumOf(made)} of ${counted(seeds.length * variants.length, "run")} finished`];
  return [h("p", { class: "note" }, visible(facts.join(" \u00b7 "))), h("p", { class: "verdict" }, visible(verdict))];
}

/** Accuracies and costs. */
export function comparisonResults(answer) {
  return [
    h("h2", {}, `Held-out ${answer.measure === "reward" ? "reward" : "accuracy"} after the last step`),
    h("p", { class: "note" }, "Means over seeds. Small: 95% Student intervals over seeds, and of the paired " +
      `differences to ${visible(answer.baseline)}. The intervals over problems cover other problems of the ` +
      "task for these policies; the intervals over seeds cover other runs on these " +
      "problems. Where all seeds are equal, none is given. No interval is corrected for the number of variants. " +
      "If an interval contains 0, either may be better."),
    accuracies(answer), costTable(answer),
  ];
}

/** Times, runs and machine. */
export function comparisonFacts({ name, variants, machine }) {
  const runs = ({ runs: found }) => Object.values(found).map((run) =>
    [live ? h("a", { href: `#/${ofRun(`${name}~${run}`)}` }, visible(run)) : h("code", {}, visible(run)), " "]);
  const facts = Object.entries(machine);
  return [
    timeParts(finished(variants)),
    h("h2", {}, "Runs"),
    table("Runs", ["variant", "settings", "runs"], variants.map((one) => [visible(one.name), visible(one.settings.join(" ")), runs(one)]), { kind: "words" }),
    facts.length ? [h("h2", {}, "Machine"), table("Machine", ["", ""], facts.map((fact) => fact.map(visible)), { kind: "words" })] : null,
  ];
}

const finished = (variants) => variants.filter(({ runs }) => Object.keys(runs).length);

function accuracies({ variants, baseline, seeds, measure }) {
  const sampled = Object.keys(SAMPLED).filter((name) => variants.some(({ figures }) => figures[name]));
  const own = measure === "reward", name = own ? "mean reward" : "greedy accuracy";
  const differences = (one) => ["over_problems", "over_seeds"].map((over) => one.against_baseline[measure]?.[over] ?? null);
  const most = Math.max(0.001, ...variants.flatMap(differences).flatMap((found) => (found ? [found.mean, ...(found.interval ?? [])] : [])).map(Math.abs));
  return table(own ? "Held-out reward" : "Held-out accuracy", ["variant", name, "difference, over problems", "difference, over seeds",
    ...sampled.map((name) => SAMPLED[name]), "seeds finished"], variants.map((one, place) => [
    [swatch(look(place)), " ", visible(one.name), one.name === baseline ? " \u00b7 baseline" : ""],
    own ? reward(one.figures.reward) : accuracy(one.figures.greedy_accuracy),
    ...differences(one).map((found) => (one.name === baseline ? "" : difference(found, most, own))),
    ...sampled.map((name) => accuracy(one.figures[name])),
    `${Object.keys(one.runs).length} of ${seeds.length}`,
  ]));
}

function accuracy(found) {
  if (!found) return number(null);
  return [share(found.mean), found.interval ? small(between(found.interval.map((end) => Math.max(0, Math.min(1, end))))) : null];
}

const reward = (found) => (found ? [fixed(found.mean, 3), found.interval ? small(between(found.interval, "")) : null] : number(null));
const small = (text) => h("span", { class: "interval" }, text);
const points = (value) => `${value > 0 ? "+" : ""}${fixed(100 * value, 1)}`;

function difference(found, most, own) {
  if (!found) return number(null);
  const { mean, interval } = found, form = own ? (value) => `${value > 0 ? "+" : ""}${fixed(value, 3)}` : points;
  return [`${form(mean)}${own ? "" : " points"}`, interval ? [small(interval.map(form).join(" to ")), whisker(mean, interval, most)] : null];
}

/** An interval around a value, on an axis that has 0 in its middle. */
function whisker(mean, interval, most) {
  const at = (value) => (WIDE / 2) * (1 + (0.94 * value) / most);
  const [low, high] = interval.map(at);
  return s("svg", { class: "whisker", width: WIDE, height: 14, "aria-hidden": "true" },
    s("line", { class: "zero", x1: WIDE / 2, x2: WIDE / 2, y1: 0, y2: 14 }), s("line", { x1: low, x2: high, y1: 7, y2: 7 }),
    s("circle", { cx: at(mean), cy: 7, r: 3.5 }));
}

/** What it took: until a share of completions was correct, and in all. */
function costTable({ threshold, window, variants }) {
  if (!finished(variants).length) return null;
  const to = percent(threshold), whole = (value) => number(Math.round(value)), tenths = (value) => fixed(value, 1);
  const costs = {
    steps_to_90: [`greedy to ${to}: steps`, whole], tokens_to_90: ["tokens", whole], seconds_to_90: ["seconds", tenths],
    sampled_steps_to_90: [`sampled to ${to}: steps`, tenths], sampled_tokens_to_90: ["tokens", whole], sampled_seconds_to_90: ["seconds", tenths],
    seconds_per_step: ["seconds per step", (value) => fixed(value, 2)], completion_tokens: ["completion tokens in all", whole],
    peak_rss_mib: ["peak memory, MiB", whole],
  };
  const cell = ({ figures, runs }, name, form) => {
    if (!figures[name]) return number(null);
    const { mean, by_seed: found } = figures[name], [count, all] = [found, runs].map((one) => Object.keys(one).length);
    const values = Object.values(found), range = [Math.min(...values), Math.max(...values)];
    return [form(mean), count < all ? small(`${count} of ${counted(all, "seed")}`) : range[0] < range[1] ? small(range.map(form).join(" to ")) : null];
  };
  return [h("h2", {}, "Cost"),
    h("p", { class: "note" }, "Means over seeds; small: the lowest and the highest seed. " +
      `Greedy to ${to}: until the first evaluation with that held-out greedy accuracy. Sampled to ${to}: until ${window} steps in a row with that share of ` +
      "correct completions, on new problems. \u201c\u2013\u201d: never."),
    table("Cost", ["variant", ...Object.values(costs).map(([title]) => title)], finished(variants).map((one) =>
      [visible(one.name), ...Object.entries(costs).map(([name, [, form]]) => cell(one, name, form))]))];
}

function timeParts(variants) {
  const parts = [...new Set(variants.flatMap(({ seconds_by_part: found }) => Object.keys(found)))];
  const most = Math.max(0, ...variants.map(({ seconds_by_part: found }) => sumOf(Object.values(found))));
  if (!(most > 0)) return null;
  const bar = (found) => stackedBar(parts.map((part, place) => ({ size: found[part] ?? 0, variable: look(place).variable })), most);
  return [h("h2", {}, "Where the time of a step goes"),
    table("Time of a step", ["variant", ...parts.map((part, place) => [swatch(look(place), true), " ", visible(part)]), ""],
      variants.map(({ name, seconds_by_part: found }) => [visible(name), ...parts.map((part) => (part in found ? `${fixed(found[part], 3)} s` : number(null))), bar(found)]))];
}
