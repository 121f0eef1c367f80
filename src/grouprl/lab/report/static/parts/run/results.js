// What came of a run: held-out results and problems, invalid rewards, where the time went, and what its summary holds.
import { address } from "../address.js";
import { live } from "../api.js";
import { h } from "../dom.js";
import { correctMark } from "../groups/marks.js";
import { byReward, intervalName } from "../series.js";
import { sumOf, table } from "../table.js";
import { between, fixed, later, number, percent, said, share, time, visible, written } from "../text.js";

const NAMES = { reward: "mean reward", greedy_accuracy: "greedy", mean_length: "mean length", unverified_share: "the verifier failed" };
const SHARES = /^(greedy_accuracy|pass_at_\d+|.+_share)$/, REWARDS = /^(?:reward|rewards\/(.+)\/mean)$/;

function measuresOf(rows, own) {
  const names = [...new Set(rows.flatMap(Object.keys))].filter((name) => SHARES.test(name) || name === "mean_length" || (own && REWARDS.test(name)));
  return names.sort((a, b) => (a === "mean_length") - (b === "mean_length"));
}

const title = (name) => visible(NAMES[name] ?? REWARDS.exec(name)?.[1] ?? name.replace(/^pass_at_/, "pass@").replace(/_share$/, "").replaceAll("_", " "));

/** A measure with its 95 % interval where there is one. */
function cell(row, name) {
  if (name === "mean_length") return fixed(row[name], 1);
  const interval = row[intervalName(name)] ?? [], own = REWARDS.test(name);
  return [own ? fixed(row[name], 3) : share(row[name]), typeof interval[0] === "number" ? h("span", { class: "interval" }, between(interval, own ? "" : "share")) : null];
}

/** All evaluations, one per row; `unjudged` for a run without a verifier. */
export function evaluationsTable(run, evaluations, unjudged) {
  const names = measuresOf(evaluations, byReward(run, evaluations));
  const row = (one) => [number(one.step), ...names.map((name) => cell(one, name)), number(one.problems)];
  const rows = evaluations.length ? table("Evaluations", ["step", ...names.map(title), "problems"], evaluations.map(row))
    : h("p", { class: "note" }, "None yet: the first evaluation comes before training.");
  return evaluations.length || !unjudged ? rows : null;
}

/** The measures of the evaluations before and after training; nothing of a run without either. */
export function beforeAndAfter({ before, after, measure }) {
  const sides = [before ?? {}, after ?? {}];
  const names = measuresOf(sides, measure === "reward").filter((name) => sides.some((side) => typeof side[name] === "number"));
  return names.length ? table("Before and after", ["", "before", "after", "change"],
    names.map((name) => [title(name), ...sides.map((side) => cell(side, name)), change(sides, name)])) : null;
}

function change([before, after], name) {
  const gap = after[name] - before[name], size = SHARES.test(name) ? 100 * gap : gap;
  if (Number.isNaN(gap)) return number(null);
  return `${size > 0 ? "+" : ""}${fixed(size, REWARDS.test(name) ? 3 : 1)}${SHARES.test(name) ? " points" : ""}`;
}

/** Held-out problems with what the policy wrote for them before and after training. */
export function examplePairs({ before = [], after = [] }) {
  const problems = new Map([...before, ...after].map((one) => [one.problem_id, one]));
  if (!problems.size) return null;
  const sides = { before: new Map(before.map((one) => [one.problem_id, one])), after: new Map(after.map((one) => [one.problem_id, one])) };
  return [h("p", { class: "note" }, "Greedy completions of held-out problems."),
    [...problems.values()].map(({ problem_id: id, prompt, answer }) => h("article", { class: "card pair" },
      h("p", {}, written(prompt)),
      answer ? h("p", { class: "note" }, "Correct answer: ", h("b", {}, written(answer))) : null,
      h("div", { class: "two" }, Object.entries(sides).map(([when, found]) => found.has(id) && side(when, found.get(id))))))];
}

function side(when, { completion, correct, reward = null }) {
  return h("section", { class: "side" }, h("header", { class: "row" }, h("span", { class: "note" }, `${when} training`), correctMark(correct), reward === null ? null : h("span", { class: "note" }, `reward ${number(reward)}`)),
    said(completion));
}

/** The reasons of invalid rewards, once they are there. */
export function invalidReasons(asked) {
  const rows = ({ reasons }) => reasons.map((one) => [written(one.reason), number(one.completions), `${one.first_step} to ${one.last_step}`]);
  return [h("p", { class: "note" }, "The group statistics skip these completions: a failed verifier does not count as a wrong completion."),
    later(asked, (answer) => table("Reasons", ["reason", "completions", "steps"], rows(answer)))];
}

/** What went wrong, step by step, and what to change. */
export const warningsTable = (warnings) => table("Warnings", ["step", "what happened", "what to change"],
  warnings.map(({ step, sentence, setting }) => [number(step), written(sentence), written(setting)]), { kind: "words" });

/** A sentence on each step whose KL jumps: which token makes how much of it. */
export function klJumps(run, jumps) {
  const link = ({ group, completion: c, token: t }, step) => h(live ? "a" : "span", { href: live && address(run, { step, group }, { c, t, view: "kl" }) },
    `token ${t + 1} of completion ${c} in group ${group}`);
  return jumps.length ? [h("h2", {}, "Where the KL jumps"), jumps.map(({ step, kl, usual, token }) => h("p", {},
    `Step ${number(step)}: ${number(kl)} nats per token, where the median of its neighbors is ${number(usual)}. `, token
      ? ["The largest part is that of ", link(token, step), `: ${percent(token.share)} of the step's KL.`]
      : "The largest token cannot be named: that needs reference_logprobs in rollouts.sqlite, which this run does not have for the step."))] : null;
}

/** Mean seconds of a step by part, the longest first, and what is left of it last. */
export function timeTable(series) {
  const mean = (name) => sumOf(series.column(name)) / sumOf(series.column("time/total").map((value) => value !== null));
  const parts = series.names().filter((name) => name.startsWith("time/") && name !== "time/total")
    .map((name) => [name.slice(5), mean(name)]).sort((a, b) => b[1] - a[1]);
  const whole = mean("time/total");
  if (!parts.length || !(whole > 0)) return null;
  const all = [...parts, ["other", Math.max(0, whole - sumOf(parts.map(([, seconds]) => seconds)))]];
  return table("Time of a step", ["part", "mean", "share", ""], all.map(([name, seconds]) => [
    visible(name), `${fixed(seconds, 3)} s`, share(seconds / whole),
    h("progress", { max: 1, value: seconds / whole, "aria-hidden": "true" }),
  ]));
}

/** What summary.json holds besides the evaluations; nothing before the end. */
export function summaryTable(summary) {
  if (summary.train_seconds === undefined) return h("p", { class: "note" }, "The run writes summary.json at its end.");
  return pairs("Summary", [
    ["Training", time(summary.train_seconds)], ["Training, loading, evaluation and saving", time(summary.total_seconds)],
    ["Completion tokens", number(summary.completion_tokens)], ["Peak memory, with loading and evaluation", mebibytes(summary.peak_rss_mib)],
    ...Object.entries(summary.networks_mib ?? {}).map(([name, size]) => [`Memory of ${name.replaceAll("_", " ")}`, mebibytes(size)]),
    ...Object.entries(summary.machine ?? {}).map(([name, value]) => [`Machine: ${name}`, String(value)]),
  ]);
}

/** Names with what they stand for. */
export function pairs(label, rows) {
  return table(label, ["", ""], rows.map((row) => row.map(visible)), { kind: "words", look: "card pairs" });
}

const mebibytes = (size) => (size === undefined ? number(null) : `${fixed(size, 1)} MiB`);
