// The stages with curves: what is maximized by the ratio, how far a ratio is trusted, and the KL to the reference; each with
// the numbers that the group had in its run.
import { asking } from "../address.js";
import { field, h, put, select } from "../dom.js";
import { column, plain, withSign } from "../numbers.js";
import { byCompletion, figures } from "../table.js";
import { counted, percent } from "../text.js";
import { klEquations, math, ratioEquations } from "./formulas.js";
import { linePlot, nearest } from "./plot.js";
import { filled } from "./walk.js";

const LABELS = [["advantage", "Advantage A"], ["surrogate", "Surrogate"], ["clip_low", "\u03b5 low"], ["clip_high", "\u03b5 high"],
  ["dual_clip", "Dual clip c, where A < 0"], ["tau_pos", "\u03c4 where A > 0"], ["tau_neg", "\u03c4 elsewhere"],
  ["k_pos", "k where A \u2265 0"], ["lambda_pos", "\u03bb where A \u2265 0"], ["k_neg", "k elsewhere"], ["lambda_neg", "\u03bb elsewhere"]];
const BOUNDS = [0.05, 0.1, 0.2, 0.28, 0.4], USUAL = 0.2; // where the run has no clip
const DUAL = [2, 3, 5], TAUS = [1, 1.05, 2, 5, 10], POWERS = [1, 2, 3, 5];
const INSIDE = 0.8; // of the way from 1 to a bound: where the handle begins
const FREE = 1.1; // and where there is no bound
const SHOWN = 4; // digits of an advantage in the list

export function clipStage({ algorithm, source, stages: { ratio, advantages } }, words) {
  const { surrogate, ratio: level, updates_per_batch: updates } = algorithm, { near, max, clipped } = ratio.of_step;
  const given = { updates, acts: words.acts[surrogate], max: plain(max, 4), clipped: percent(clipped) };
  const watch = updates > 1 ? words.watch.several + (max === null ? "" : words.watch.recorded) : words.watch[near ? "one" : "apart"];
  return {
    title: words.title[surrogate] ?? words.title.plain,
    happens: [words.happens[level], words.maximized[surrogate]].join(" "),
    why: words.why[surrogate],
    watch: filled(watch, given),
    equation: ratioEquations(algorithm, words),
    body: () => h("div", {}, objective(advantages, algorithm, source.rewards === undefined, words.name), recorded(ratio, algorithm)),
  };
}

/** What the ratios of this group were in its run. */
function recorded({ completions, level, bounds, reason }, { updates_per_batch: updates }) {
  if (reason) return h("p", { class: "note" }, `In this group: ${reason}.`);
  const [heads, columns] = level === "token" ? ofTokens(completions, bounds) : ofCompletions(completions, bounds);
  const each = level === "token" ? "one for each token" : "one for each completion";
  return h("details", {},
    h("summary", {}, `Ratios of this group in its last update (${each}; ${counted(updates, "update")} per batch)`),
    byCompletion("Ratios of this group", heads, columns));
}

function ofTokens(completions, bounds) {
  const of = (name) => completions.map((one) => one[name]);
  const ratios = [column(of("mean")), column(of("max"))];
  if (bounds.length === 0) return [["mean ratio", "largest"], ratios];
  return [["mean ratio", "largest", "clipped below", "clipped above"],
    [...ratios, of("clip_low_fraction").map(percent), of("clip_high_fraction").map(percent)]];
}

function ofCompletions(completions, bounds) {
  const ratios = column(completions.map(({ mean }) => mean), { digits: 6 });
  if (bounds.length === 0) return [["ratio"], [ratios]];
  const side = ({ clip_low_fraction: low, clip_high_fraction: high }) => (low > 0 ? "below" : high > 0 ? "above" : "no");
  return [["ratio", "clipped"], [ratios, completions.map(side)]];
}

/** The objective of one token by its ratio: the plot with its choices, which begin as the algorithm has them. `recorded`: whether they are those of a run. */
function objective({ completions, by_token: byToken }, algorithm, recorded, names) {
  const whole = algorithm.ratio === "sequence";
  const read = h("p", { class: "read" });
  const counted = h("p", { class: "note" }, "The objective uses the change of the log-prob since the token was sampled.");
  const selects = selectsOf(completions, algorithm, recorded ? "this run" : algorithm.name, names);
  let answer = null;
  const plot = linePlot({
    label: `The objective of a ${whole ? "completion" : "token"} against its ratio`,
    x: whole ? "ratio s of a completion" : "ratio \u03c1 of a token",
    y: "objective S",
    handle: { name: "Ratio", said: (index) => spoken(answer, index) },
    onmove: (index) => put(read, readout(answer, index, whole)),
  });
  const asked = asking("objective", (found) => {
    const at = isSameAxis(answer?.ratio, found.ratio) ? answer.ratio[plot.index()] : beginning(found.bounds);
    answer = found;
    plot.show(drawn(found));
    plot.move(nearest(found.ratio, at));
    put(read, readout(found, plot.index(), whole));
  });
  const labels = LABELS.map(([name, words]) => field(words, selects[name]));
  if (byToken) labels[0].firstChild.append(" (mean over the tokens)");
  const ask = () => {
    const acting = LABELS.map(([name]) => acts(name, selects.surrogate.value));
    labels.forEach((label, place) => { label.hidden = !acting[place]; });
    counted.hidden = !["cispo", "vespo"].includes(selects.surrogate.value);
    asked.now(Object.fromEntries(LABELS.filter((_, place) => acting[place]).map(([name]) => [name, selects[name].value])));
  };
  ask();
  return h("div", {}, h("div", { class: "row controls", onchange: ask }, labels), asked.failed, plot.element, counted, read);
}

/** Whether a choice has a part in the surrogate. */
function acts(name, surrogate) {
  return { c: ["clip", "cispo", "gmpo"], d: ["clip"], t: ["sapo"], k: ["vespo"], l: ["vespo"] }[name[0]]?.includes(surrogate) ?? true;
}

function selectsOf(advantages, algorithm, whose, names) {
  const own = (name, usual, otherwise) => select(boundOptions(usual, algorithm[name], whose), algorithm[name] ?? otherwise);
  return {
    advantage: select(advantageOptions(advantages)), surrogate: select(Object.entries(names), algorithm.surrogate),
    clip_low: own("clip_low", BOUNDS, USUAL), clip_high: own("clip_high", BOUNDS, USUAL),
    tau_pos: own("tau_pos", TAUS, 1), tau_neg: own("tau_neg", TAUS, 1.05),
    k_pos: own("k_pos", POWERS, 2), lambda_pos: own("lambda_pos", POWERS, 3),
    k_neg: own("k_neg", POWERS, 3), lambda_neg: own("lambda_neg", POWERS, 2),
    dual_clip: select([["", "none"], ...boundOptions(DUAL, algorithm.dual_clip, whose)], algorithm.dual_clip),
  };
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

/** Digits that distinguish neighboring ratios. */
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
    slope === 0 ? `There is no gradient: this ${what} does not contribute to the update.` : `The update would make this ${what} ${slope > 0 ? "more probable" : "less probable"}.`];
}

// The KL: drag how far a token's log-prob has moved, see three estimates and their gradients.

const KINDS = [["k1", 2], ["k2", 3], ["k3", 1]];
// What is drawn, under which title, the name of its axis, and how much of it.
const CURVES = [
  ["value", "Estimate of the KL", "estimate, in nats", [-3.5, 8]],
  ["gradient", "Gradient with respect to the log-prob", "gradient", [-8, 3.5]],
];
const BEGINS = 1; // of the handle
const DEFINED = "Three estimates of a token: k1 = −x, k2 = x^2 / 2, k3 = e^x − 1 − x, with x = log ( π_{ref} / π_θ ).";

export function klStage({ algorithm, stages: { kl } }, words) {
  return {
    happens: words.happens[algorithm.kl_coef > 0 ? algorithm.kl_in : "none"],
    equation: klEquations(algorithm, words),
    body: () => h("div", {}, curves(), recordedKl(kl, algorithm)),
  };
}

function curves() {
  const [read, whole] = [h("div", { class: "read" }), h("div", {})];
  let answer = null;
  const moved = (index) => {
    for (const plot of plots) plot.move(index);
    put(read, readoutKl(answer, index));
  };
  const plots = CURVES.map(([part, title, y]) => linePlot({
    label: `${title} of a token, by the log of pi ref over pi theta`,
    x: "x = log ( \u03c0 ref / \u03c0 \u03b8 ) of a token",
    y,
    handle: { name: `Log of pi ref over pi theta, ${part}s`, said: (index) => spokenKl(answer, index, part) },
    onmove: moved,
  }));
  const asked = asking("kl", (found) => {
    answer = found;
    plots.forEach((plot, place) => plot.show({
      grid: found.log_ratio,
      series: KINDS.map(([kind, look]) => ({ name: kind, look, values: found.kinds[kind][CURVES[place][0]] })),
      range: CURVES[place][3],
      marks: [{ at: 0 }],
    }));
    moved(nearest(found.log_ratio, BEGINS));
    put(whole, ofAPair(found.pair));
  });
  asked.now({});
  const titled = plots.map((plot, place) => h("section", {}, h("h3", {}, CURVES[place][1]), plot.element));
  return h("div", {}, asked.failed, h("p", { class: "note" }, math(DEFINED)), h("div", { class: "two" }, titled), read, whole);
}

function spokenKl({ log_ratio: grid, kinds }, index, part) {
  return `${withSign(grid[index])}: ${KINDS.map(([kind]) => `${kind} ${withSign(kinds[kind][part][index])}`).join(", ")}`;
}

function readoutKl({ log_ratio: grid, kinds }, index) {
  const at = grid[index];
  const [more, less] = at > 0 ? ["reference", "policy"] : ["policy", "reference"];
  const where = at === 0 ? "Policy and reference give this token the same probability" : `This token is more probable under the ${more} than under the ${less}`;
  const of = (part) => column(KINDS.map(([kind]) => kinds[kind][part][index]), { sign: true });
  return [h("p", {}, h("i", {}, "x"), " = log ( \u03c0 ref / \u03c0 \u03b8 ) = ", h("b", {}, withSign(at)), `. ${where}.`),
    figures("Estimates and gradients at this point", ["", "estimate", "gradient"],
      [KINDS.map(([kind]) => kind), of("value"), of("gradient")])];
}

/** Over all tokens of a distribution: what the estimates come to, and where each of them pulls. */
function ofAPair({ policy, reference, kl, reverse_kl: reverse, exact_gradient: exact, reverse_gradient: other, kinds }) {
  const list = (values, sign) => column(values, { digits: 4, sign }).join(", ");
  const names = [...KINDS.map(([kind]) => kind), "KL(policy, reference)", "KL(reference, policy)"];
  const means = column([...KINDS.map(([kind]) => kinds[kind].expectation), kl, reverse]);
  const slopes = [...KINDS.map(([kind]) => kinds[kind].gradient), exact, other].map((values) => list(values, true));
  return h("details", {}, h("summary", {}, "Over a whole distribution: mean and gradient of each estimate"),
    h("p", { class: "note" }, `Three tokens: the policy has the probabilities ${list(policy, false)}; the reference has ` +
      `${list(reference, false)}. Gradients are with respect to the policy's three logits.`),
    figures("Estimates over a distribution", ["", "mean", "gradient as a loss"], [names, means, slopes]),
    h("p", { class: "note" }, "k1 has the mean of the KL and gradient 0. k2 has the gradient of KL(policy, reference), k3 the gradient of KL(reference, policy)."));
}

/** What the KL of this group was in its run. */
function recordedKl({ kind, coefficient, reason, completions, in: where }, { name }) {
  if (!completions) return h("p", { class: "note" }, `In this group: ${reason ?? "no KL was recorded"}.`);
  const inLoss = reason ? ` (${reason})` : "";
  const [does, place] = where === "loss" ? ["adds", `to the loss${inLoss}`] : ["subtracts", "from the reward, estimated from the sampler's log-probs"];
  const of = (part) => column(completions.map((one) => one[part]));
  return h("details", {},
    h("summary", {}, `In this group ${name} ${does} ${kind}, times \u03b2 = ${plain(coefficient)}, ${place}.`),
    byCompletion("KL of this group", [`${kind} per token, nats`, "sum over its tokens"],
      [of("mean"), of("sum")]));
}
