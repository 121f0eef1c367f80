// The ratio and the surrogate: what the run maximises, how far it trusts a ratio, and the ratios that it had.
import { field, h, put } from "../dom.js";
import { column, plain, withSign } from "../numbers.js";
import { byCompletion } from "../table.js";
import { percent } from "../text.js";
import { asking } from "../address.js";
import { ratioEquations } from "./formulas.js";
import { linePlot, nearest } from "./plot.js";
import { filled } from "./stages.js";

const LABELS = [["advantage", "Advantage A"], ["surrogate", "Surrogate"], ["clip_low", "\u03b5 low"], ["clip_high", "\u03b5 high"],
  ["dual_clip", "Dual clip c, where A < 0"]];
const SURROGATES = [["clip", "clip (PPO, GRPO)"], ["plain", "plain (no clip)"], ["cispo", "cispo (clipped weight)"]];
const BOUNDS = [0.05, 0.1, 0.2, 0.28, 0.4];
const USUAL = 0.2; // where the run has no clip
const DUAL = [2, 3, 5];
const INSIDE = 0.8; // of the way from 1 to a bound: where the handle begins
const FREE = 1.1; // and where there is no bound
const SHOWN = 4; // digits of an advantage in the list

export function clipStage({ algorithm, source, stages: { ratio, advantages } }, { ratio: words }) {
  const { surrogate, ratio: level, updates_per_batch: updates } = algorithm;
  return {
    key: "ratio",
    title: words.title[surrogate],
    happens: `${words.happens[level]} ${words.maximised[surrogate]}`,
    why: words.why[surrogate],
    watch: filled(words.watch[updates === 1 ? "one" : "several"], { updates, acts: words.acts[surrogate] }),
    equation: ratioEquations(algorithm),
    body: () => h("div", {}, objective(advantages, algorithm, source.rewards === undefined), recorded(ratio, algorithm)),
  };
}

/** What the ratios of this group were in its run. */
function recorded({ completions, level, bounds }, { updates_per_batch: updates }) {
  const reasons = [...new Set(completions.map(({ reason }) => reason))];
  if (reasons.length === 1 && reasons[0]) return h("p", { class: "note" }, `In this group: ${reasons[0]}.`);
  const [heads, columns] = level === "token" ? ofTokens(completions, bounds) : ofCompletions(completions, bounds);
  const each = level === "token" ? "one for each token" : "one for each completion";
  return h("details", {},
    h("summary", {}, `Ratios of this group when it was last learned from (${each}; ${updates} updates on a batch)`),
    byCompletion("Ratios of this group", heads, columns));
}

function ofTokens(completions, bounds) {
  const of = (name) => completions.map((one) => one[name]);
  const ratios = [column(of("mean")), column(of("max"))];
  if (bounds.length === 0) return [["mean ratio", "largest"], ratios];
  const share = (name) => of(name).map(percent);
  return [["mean ratio", "largest", "clipped below", "clipped above"], [...ratios, share("clip_low_fraction"), share("clip_high_fraction")]];
}

function ofCompletions(completions, bounds) {
  const ratios = column(completions.map(({ mean }) => mean), { digits: 6 });
  if (bounds.length === 0) return [["ratio"], [ratios]];
  const side = ({ clip_low_fraction: low, clip_high_fraction: high }) => (low > 0 ? "below" : high > 0 ? "above" : "no");
  return [["ratio", "clipped"], [ratios, completions.map(side)]];
}

/** The objective of one token by its ratio: the plot with its choices, which begin as the algorithm has them. `recorded`: whether they are those of a run. */
function objective({ completions, by_token: byToken }, algorithm, recorded) {
  const whole = algorithm.ratio === "sequence";
  const failed = h("p", { class: "error" });
  const read = h("p", { class: "read" });
  const counted = h("p", { class: "note" }, "The log-prob is counted from what it was when the token was written.");
  const selects = selectsOf(completions, algorithm, recorded ? "this run" : algorithm.name);
  let answer = null;
  const plot = linePlot({
    label: `The objective of a ${whole ? "completion" : "token"} against its ratio`,
    x: whole ? "ratio s of a completion" : "ratio \u03c1 of a token",
    y: "objective S",
    handle: { name: "Ratio", said: (index) => (answer ? spoken(answer, index) : "") },
    onmove: (index) => put(read, readout(answer, index, whole)),
  });
  const asked = asking("objective", (found) => {
    const at = isSameAxis(answer?.ratio, found.ratio) ? answer.ratio[plot.index()] : beginning(found.bounds);
    answer = found;
    put(failed);
    plot.show(drawn(found));
    plot.move(nearest(found.ratio, at));
    put(read, readout(found, plot.index(), whole));
  }, (error) => put(failed, error.message));
  const labels = LABELS.map(([name, words]) => field(words, selects[name]));
  if (byToken) labels[0].firstChild.append(" (mean over the tokens)");
  const ask = () => {
    const acting = LABELS.map(([name]) => acts(name, selects.surrogate.value));
    labels.forEach((label, place) => { label.hidden = !acting[place]; });
    counted.hidden = selects.surrogate.value !== "cispo";
    asked.now(Object.fromEntries(LABELS.filter((_, place) => acting[place]).map(([name]) => [name, selects[name].value])));
  };
  ask();
  return h("div", {}, h("div", { class: "row controls", onchange: ask }, labels), failed, plot.element, counted, read);
}

/** Whether a choice has a part in the surrogate. */
function acts(name, surrogate) {
  if (name === "dual_clip") return surrogate === "clip";
  return surrogate !== "plain" || !name.startsWith("clip");
}

function selectsOf(advantages, { surrogate, clip_low: low, clip_high: high, dual_clip: dual }, whose) {
  const clipped = surrogate !== "plain";
  return {
    advantage: choice(advantageOptions(advantages), null),
    surrogate: choice(SURROGATES, surrogate),
    clip_low: choice(boundOptions(BOUNDS, clipped ? low : null, whose), clipped ? low : USUAL),
    clip_high: choice(boundOptions(BOUNDS, clipped ? high : null, whose), clipped ? high : USUAL),
    dual_clip: choice([["", "none"], ...boundOptions(DUAL, dual, whose)], dual),
  };
}

function choice(options, chosen) {
  return h("select", {}, options.map(([value, name]) => h("option", { value: String(value), selected: value === chosen }, name)));
}

/** The different advantages of the group, the largest first; without any, one of either sign. */
function advantageOptions(advantages) {
  const moved = [...advantages.keys()].filter((index) => advantages[index] !== 0);
  const found = [...Map.groupBy(moved, (index) => withSign(advantages[index], SHOWN))];
  if (found.length === 0) return [1, -1].map((value) => [value, `${withSign(value)} (an example)`]);
  const options = found.map(([shown, indices]) => [advantages[indices[0]], `${shown} (${places(indices)})`]);
  return options.sort(([one], [other]) => other - one);
}

function places(indices) {
  return `completion${indices.length > 1 ? "s" : ""} ${indices.slice(0, 4).join(", ")}${indices.length > 4 ? ", \u2026" : ""}`;
}

function boundOptions(usual, own, whose) {
  const all = [...new Set([...usual, ...(own === null ? [] : [own])])].sort((one, other) => one - other);
  return all.map((value) => [value, `${plain(value)}${value === own ? ` (${whose})` : ""}`]);
}

function isSameAxis(one, other) {
  return one !== undefined && one[0] === other[0] && one.at(-1) === other.at(-1);
}

/** Just inside the bound above 1, or else the one below, so that there is a gradient to look at. */
function beginning(bounds) {
  const bound = bounds.find((one) => one > 1) ?? bounds.findLast((one) => one < 1);
  return bound === undefined ? FREE : 1 + INSIDE * (bound - 1);
}

function drawn({ ratio, objective: values, dead, bounds }) {
  const found = values.filter((value) => Number.isFinite(value));
  return {
    grid: ratio,
    series: [{ name: "objective", look: 1, values }],
    regions: dead.map(([from, to]) => ({ from, to, name: "no gradient" })),
    marks: [{ at: 1 }, ...bounds.map((at) => ({ at, name: plain(at) }))].filter(({ at }) => ratio[0] <= at && at <= ratio.at(-1)),
    // Around 1 the objective differs little from the advantage: an axis from 0 would show a flat line.
    range: ratio[0] > 0 ? [Math.min(...found), Math.max(...found)] : null,
  };
}

/** Digits that tell neighbouring ratios apart. */
function digitsOf(ratio) {
  return ratio[0] > 0 ? 7 : 5;
}

function spoken({ ratio, objective: values, gradient }, index) {
  const digits = digitsOf(ratio);
  const slope = gradient[index] === 0 ? "no gradient" : `gradient ${withSign(gradient[index], digits)}`;
  return `ratio ${plain(ratio[index], digits)}, objective ${withSign(values[index], digits)}, ${slope}`;
}

function readout({ ratio, objective: values, gradient }, index, whole) {
  const [slope, digits] = [gradient[index], digitsOf(ratio)];
  const [what, by] = whole ? ["completion", "mean log-prob of its tokens"] : ["token", "log-prob of the token"];
  return ["Ratio ", h("b", {}, plain(ratio[index], digits)), ": objective ", h("b", {}, withSign(values[index], digits)),
    `, gradient with respect to the ${by} `, h("b", {}, withSign(slope, digits)), ". ",
    slope === 0 ? `Nothing pushes this ${what} here.` : `The update would make this ${what} ${slope > 0 ? "likelier" : "less likely"}.`];
}
