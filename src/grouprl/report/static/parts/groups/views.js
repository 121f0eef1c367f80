// What the tokens of a completion can be coloured by, and the scale of each colouring.
import { h } from "../dom.js";
import { number, percent, signed } from "../text.js";
import { FULL, advantageSteps, tint, tinted } from "./marks.js";

// `of`: the list in the lab's answer. `missing`: why a completion may not have it.
export const VIEWS = {
  advantage: { label: "Advantage", of: "advantages", scale: asOnCards,
    sentence: "How much better the completion, or what follows the token, was than expected." },
  probability: { label: "Probability", of: "probabilities", scale: surprise,
    sentence: "Of the token when it was drawn. The stronger the colour, the less likely it was." },
  ratio: { label: "Ratio learner / sampler", of: "ratios", scale: ratio,
    missing: "the learner did not read this completion",
    sentence: "The learner's probability to the sampler's, in the last pass over the group: 1 until the weights move." },
  clipped: { label: "Clipped", of: "clipped", scale: sides,
    missing: "the learner did not read this completion, or its clipping cannot be told from the record",
    sentence: "Tokens whose ratio left the bounds on the side to which the advantage pushes: they give no gradient." },
  kl: { label: "KL to the reference", of: "kl", scale: either,
    missing: "the run has no reference, or the learner did not read this completion",
    sentence: "The run's estimate of how far the policy is from the reference at this token, in nats." },
  entropy: { label: "Entropy", of: "entropies", scale: either,
    missing: "the learner did not read this completion",
    sentence: "How open the policy was at this place, in nats: 0 is certain." },
  change: { label: "Change by the update", of: "changes", scale: both,
    missing: "in every tenth step (1, 11, 21, \u2026) one group is read again after the update, and this is another",
    sentence: "What the step's update added to the token's probability." },
};

/** The scale of a view for a completion: {tint(place), legend}. */
export function scaleOf(name, completion) {
  const view = VIEWS[name], values = completion[view.of];
  return view.scale(values, completion);
}

/** The scale of the completions: a colour means the same there and here. */
function asOnCards(values) {
  return { tint: (place) => tint(values[place], FULL), legend: advantageSteps() };
}

function both(values) {
  const full = round(largest(values));
  return {
    tint: (place) => tint(values[place], full),
    legend: [-full, -full / 2, 0, full / 2, full].map((value) => [signed(value, 4), tint(value, full)]),
  };
}

const amount = (size) => ({ tone: size ? "amount" : "zero", size });

function surprise(values) {
  return {
    tint: (place) => amount(1 - values[place]),
    legend: [1, 0.75, 0.5, 0.25, 0].map((value) => [percent(value), amount(1 - value)]),
  };
}

/** From 0 up; with both signs where an estimate falls below. */
function either(values) {
  if (values.some((value) => value < 0)) return both(values);
  const full = round(largest(values));
  return {
    tint: (place) => amount(values[place] / full),
    legend: [0, 0.25, 0.5, 0.75, 1].map((share) => [number(share * full, 4), amount(share)]),
  };
}

// At least as wide as the bounds, so that rounding errors keep faint colours.
function ratio(values, { objective }) {
  const full = Math.max(objective.clip_low, objective.clip_high, round(largest(values.map((value) => value - 1))));
  return {
    tint: (place) => tint(values[place] - 1, full),
    legend: [-full, -full / 2, 0, full / 2, full].map((value) => [number(1 + value, 4), tint(value, full)]),
  };
}

function sides(values, { objective }) {
  const below = { tone: "minus", size: 1 }, above = { tone: "plus", size: 1 }, neither = { tone: "zero", size: 0 };
  const looks = { low: below, high: above, dual: below };
  return {
    tint: (place) => looks[values[place]] ?? neither,
    legend: [["not clipped", neither], [`below ${number(1 - objective.clip_low)}`, below],
      [`above ${number(1 + objective.clip_high)}`, above],
      ...(objective.dual_clip === null ? [] : [[`above ${number(objective.dual_clip)} (dual clip)`, below]])],
  };
}

const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

/** The next round number; 1 for 0. */
function round(value) {
  if (!value) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 1.5, 2, 3, 5, 7.5].find((step) => step * power >= value * 0.999999) ?? 10);
}

export function legendOf({ legend }) {
  return h("span", { class: "scale" }, legend.map(([label, look]) => tinted(h("span", { class: "tint" }, label), look)));
}
