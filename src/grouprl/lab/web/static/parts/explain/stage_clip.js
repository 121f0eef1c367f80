// The ratio and the clip: drag the ratio, see what the objective gains and where its gradient ends.
import { h, put } from "../dom.js";
import { percent, signed } from "../text.js";
import { asking } from "./ask.js";
import { ADVANTAGE, equation, fraction, POLICY, RATIO, SAMPLER, TOKEN, v } from "./equation.js";
import { figures, indexHead, plain } from "./figures.js";
import { linePlot, nearest } from "./plot.js";

const SURROGATES = [["clip", "clip (PPO, GRPO)"], ["plain", "plain (no clip)"], ["cispo", "cispo (clipped weight)"]];
const BOUNDS = [0.05, 0.1, 0.2, 0.28, 0.4];
const BEGINS = 1.1; // of the handle, a little off the place where every ratio starts

export function clipStage({ algorithm, stages: { ratio, advantages } }) {
  return {
    key: "ratio",
    title: "Ratio and clip",
    next: "ratio and clip",
    happens: "The ratio says how much likelier the policy makes a token now than when it was written. What is maximised is ratio " +
      "times advantage, until the ratio has left the clip range in the direction that the advantage pushes.",
    why: "The completions were drawn from the policy as it was. The further it moves, the less they say about it, so beyond the " +
      "bound there is nothing more to gain.",
    watch: "In the first update of a step every ratio is 1 and no clip acts. With one update per step none ever does.",
    equation: equations(),
    body: () => h("div", {}, objective(advantages.completions, algorithm), recorded(ratio, algorithm)),
  };
}

function equations() {
  const range = ["1 \u2212 ", v("\u03b5", "low"), ", 1 + ", v("\u03b5", "high")];
  return [
    equation("the ratio rho i t is pi theta of the token over pi old of the token",
      RATIO(), " = ", fraction([POLICY(), "(", TOKEN(), ")"], [SAMPLER(), "(", TOKEN(), ")"])),
    equation("S i t is the smaller of rho times A, and rho clipped to between one minus epsilon low and one plus epsilon high, times A",
      v("S", "i,t"), " = min ( ", RATIO(), " ", ADVANTAGE(), " , clip(", RATIO(), ", ", range, ") ", ADVANTAGE(), " )"),
  ];
}

function objective(advantages, algorithm) {
  const failed = h("p", { class: "error" });
  const read = h("p", { class: "read" });
  let answer = null;
  const plot = linePlot({
    label: "The objective of a token against its ratio",
    x: "ratio \u03c1 of a token",
    handle: { name: "Ratio", said: (index) => (answer ? spoken(answer, index) : "") },
    onmove: (index) => put(read, readout(answer, index)),
  });
  const asked = asking("objective", (found) => {
    const at = answer === null ? BEGINS : answer.ratio[plot.index()];
    answer = found;
    put(failed);
    plot.show({
      grid: found.ratio,
      series: [{ name: "objective", look: 1, values: found.objective }],
      regions: found.dead.map(([from, to]) => ({ from, to, name: "no gradient" })),
      marks: found.bounds,
    });
    plot.move(nearest(found.ratio, at));
    put(read, readout(found, plot.index()));
  }, (error) => put(failed, error.message));
  const fields = {
    advantage: choice(advantageOptions(advantages), null),
    surrogate: choice(SURROGATES, algorithm.surrogate),
    clip_low: choice(boundOptions(algorithm.clip_low), algorithm.clip_low),
    clip_high: choice(boundOptions(algorithm.clip_high), algorithm.clip_high),
  };
  const ask = () => asked.now(Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value])));
  const names = { advantage: "Advantage A", surrogate: "Surrogate", clip_low: "\u03b5 low", clip_high: "\u03b5 high" };
  const controls = Object.entries(fields).map(([name, field]) => h("label", { class: "field" }, h("span", {}, names[name]), field));
  ask();
  return h("div", {}, h("div", { class: "row controls", onchange: ask }, controls), failed, plot.element, read);
}

function choice(options, chosen) {
  return h("select", {}, options.map(([value, name]) => h("option", { value: String(value), selected: value === chosen }, name)));
}

/** The different advantages of the group, the largest first; without any, one of either sign. */
function advantageOptions(advantages) {
  const found = [...new Set(advantages.filter((value) => value !== 0))].sort((one, other) => other - one);
  if (found.length === 0) return [1, -1].map((value) => [value, `${signed(value)} (an example)`]);
  const holders = (value) => advantages.flatMap((one, index) => (one === value ? [index] : []));
  return found.map((value) => [value, `${signed(value)} (${places(holders(value))})`]);
}

function places(indices) {
  return `completion${indices.length > 1 ? "s" : ""} ${indices.slice(0, 4).join(", ")}${indices.length > 4 ? ", \u2026" : ""}`;
}

function boundOptions(own) {
  const all = [...new Set([...BOUNDS, own])].sort((one, other) => one - other);
  return all.map((value) => [value, `${plain(value)}${value === own ? " (this run)" : ""}`]);
}

function spoken({ ratio, objective, gradient }, index) {
  const slope = gradient[index] === 0 ? "no gradient" : `gradient ${signed(gradient[index])}`;
  return `ratio ${plain(ratio[index], 3)}, objective ${signed(objective[index])}, ${slope}`;
}

function readout({ ratio, objective, gradient }, index) {
  const slope = gradient[index];
  const way = slope > 0 ? "likelier" : "less likely";
  return ["Ratio ", h("b", {}, plain(ratio[index], 3)), ": objective ", h("b", {}, signed(objective[index])),
    ", gradient with respect to the log-prob of the token ", h("b", {}, signed(slope)), ". ",
    slope === 0 ? "Nothing pushes this token here." : `The update would make this token ${way}.`];
}

/** What the ratios of this group were in its run. */
function recorded({ completions, level }, { updates_per_batch: updates }) {
  const reasons = [...new Set(completions.map(({ reason }) => reason))];
  if (reasons.length === 1 && reasons[0]) return h("p", { class: "note" }, `In this group: ${reasons[0]}.`);
  const rows = completions.map(({ mean, max, clip_low_fraction: low, clip_high_fraction: high }, index) =>
    [String(index), plain(mean), plain(max), percent(low), percent(high)]);
  const each = level === "token" ? "one for each token" : "one for a completion";
  return h("details", {}, h("summary", {}, `Ratios of this group in the last of ${updates} updates (${each})`),
    figures("Ratios of this group", [indexHead(), "mean ratio", "largest", "clipped below", "clipped above"], rows));
}
