// The last stages: the loss with its gradient, and what the update did to the completions.
import { h } from "../dom.js";
import { column, plain } from "../numbers.js";
import { signedBars } from "./bars.js";
import { equation, fraction, v } from "./equation.js";
import { asRows, figures, indexHead } from "./figures.js";

const BATCH = () => h("i", {}, "N");
const WEIGHTS = {
  sequence_mean: ["one over N times the length of the completion", () => fraction("1", [BATCH(), " ", v("T", "i")])],
  token_mean: ["one over the number of all tokens", () => fraction("1", [v("\u2211", "j"), " ", v("T", "j")])],
  constant: ["one over N times the largest length", () => fraction("1", [BATCH(), " ", h("i", {}, "L")])],
};
const LINKS = 8; // to groups whose update was looked at
const SHOWN = 3; // digits in the tables, at least

export function lossStage({ algorithm, stages: { loss, gradient, completions } }) {
  return {
    key: "loss",
    title: "Loss and gradient",
    next: "loss and gradient",
    happens: "The terms of all tokens are added up, with weights that make them an average over the batch: the loss. " +
      "Its gradient says which way each log-prob should move.",
    why: "One number has to stand for the whole batch, so that AdamW can follow its gradient through the weights of the network.",
    watch: algorithm.aggregate === "sequence_mean"
      ? "A token of a long completion weighs less than one of a short completion, since each completion counts the same: long wrong answers are cheap."
      : "How tokens are averaged decides how much a long completion weighs beside a short one.",
    equation: lossEquations(algorithm),
    body: () => h("div", {}, lossTable(loss, gradient, completions), lossNote(loss)),
  };
}

function lossEquations({ aggregate, kl_in: where, kl_coef: coefficient }) {
  const [said, weight] = WEIGHTS[aggregate];
  const anchored = where === "loss" && coefficient > 0;
  const anchor = anchored ? [" + ", h("i", {}, "\u03b2"), " ", v("D", "i,t")] : null;
  const sum = `the loss J is the sum over completions i and tokens t of the weight w i t times minus S i t${anchored ? " plus beta times D i t" : ""}`;
  return [
    equation(sum, h("i", {}, "J"), " = ", v("\u2211", "i,t"), " ", v("w", "i,t"), " ( \u2212", v("S", "i,t"), anchor, " )"),
    equation(`the weight w i t is ${said}`, v("w", "i,t"), " = ", weight()),
  ];
}

function lossTable({ completions: terms }, { completions: slopes }, completions) {
  const becomes = slopes.map(({ sum }) => (sum < 0 ? "likelier" : sum > 0 ? "less likely" : "not moved"));
  const lengths = completions.map(({ length }) => String(length));
  const of = (name) => column(slopes.map((one) => one[name]), { digits: SHOWN });
  return figures("Loss and gradient by completion", [indexHead(), "tokens", "weight", "loss", "gradient", "becomes"],
    asRows([lengths.map((_, index) => String(index)), lengths, of("weight"), column(terms, { digits: SHOWN }), of("sum"), becomes]));
}

function lossNote({ share, surrogate, kl, step, batch }) {
  const groups = batch.groups === 1 ? "one group" : `${batch.groups} groups`;
  return h("p", { class: "note" },
    "Weight, loss and gradient are summed over the tokens; a gradient below 0 makes a completion likelier. " +
    `The batch has the ${batch.completions} completions of ${groups}. Of its loss this group makes ${plain(share)}: ` +
    `${plain(surrogate)} from the advantages, ${plain(kl)} from the KL.`,
    step === null ? null : ` The loss of the whole step was ${plain(step)}.`,
    " The value of the loss says little by itself: what moves the policy is the gradient.");
}

export function updateStage(group) {
  const { update } = group.stages;
  const recorded = group.source.rewards === undefined;
  return {
    key: "update",
    title: "The update",
    next: "the update",
    happens: recorded
      ? `AdamW moves the weights of the network ${stepsOf(group)}. The same completions now have other probabilities.`
      : "One step of gradient descent moves the policy's logits. The same completions now have other probabilities.",
    why: "That is all that training does: what was better than its siblings becomes likelier, what was worse less likely, " +
      "and the next group is drawn from the new policy.",
    watch: recorded
      ? "All completions, of all groups, share the same weights. One can be carried along by others like it, even against its own advantage."
      : "Probabilities add up to 1: what one completion gains the others lose, even one whose advantage is 0.",
    body: () => (update.reason ? unseen(group) : seen(group)),
  };
}

/** How often the weights move before the next completions are written. */
function stepsOf({ algorithm: { updates_per_batch: updates, minibatches, passes }, stages: { loss: { batch } } }) {
  if (updates === 1) return "by one step";
  const again = passes > 1 ? `, in ${passes} passes over the batch` : "";
  if (minibatches === 1) return `by ${updates} steps, one for each pass over the batch`;
  if (batch.groups < minibatches) return `by one step for each of the ${batch.groups} groups of the batch${again}`;
  return `by ${updates} steps, each by the loss of a part of the batch${again}`;
}

function unseen({ source, stages: { update } }) {
  const links = update.watched.slice(0, LINKS).map(({ step, group }) => {
    const to = `#/step?run=${encodeURIComponent(source.run)}&step=${step}&group=${group}&stage=update`;
    return h("li", {}, h("a", { href: to }, `step ${step}, group ${group}`));
  });
  return h("div", {}, h("p", {}, update.reason), links.length ? [h("p", {}, "Go there:"), h("ul", {}, links)] : null);
}

function seen({ source, stages: { update, advantages } }) {
  const { completions, learning_rate: rate, grad_norm: norm } = update;
  const factors = completions.map(({ factor }) => factor);
  const times = column(factors, { digits: SHOWN }).map((text, index) => (factors[index] === null ? "unknown" : `\u00d7 ${text}`));
  // The axis is logarithmic: twice as likely and half as likely are equally far from the middle.
  const bars = factors.map((factor, index) =>
    ({ name: String(index), value: factor === null ? null : Math.log(factor), text: times[index] }));
  const of = (name) => column(completions.map((one) => one[name]));
  const rows = asRows([factors.map((_, index) => String(index)), column(advantages.completions, { sign: true }),
    of("probability_before"), of("probability_after"), times]);
  return h("div", {},
    h("h3", {}, "How much likelier each completion became"),
    signedBars("Probability after the update over that before", bars).element,
    h("p", { class: "note" }, `Right: likelier. Left: less likely. The learning rate was ${plain(rate)}, the norm of the gradient ` +
      `${plain(norm)}${source.rewards === undefined ? " over the whole batch" : ""}.`),
    h("h3", {}, "Probabilities"),
    figures("Probabilities before and after", [indexHead(), "advantage", "before", "after", "factor"], rows));
}
