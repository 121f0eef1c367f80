// The last stages: the loss with its gradient, and what the update did to the completions.
import { h } from "../dom.js";
import { column, plain } from "../numbers.js";
import { byCompletion } from "../table.js";
import { signedBars } from "./bars.js";
import { lossEquations } from "./formulas.js";
import { filled } from "./stages.js";

const LINKS = 8; // to groups whose update was looked at
const SHOWN = 3; // digits in the tables, at least

export function lossStage({ algorithm, stages: { loss, gradient, completions } }, { loss: words }) {
  return {
    key: "loss",
    ...words,
    watch: words.watch[algorithm.aggregate] ?? words.watch.other,
    equation: lossEquations(algorithm),
    body: () => h("div", {}, lossTable(loss, gradient, completions), lossNote(loss)),
  };
}

function lossTable({ completions: terms }, { completions: slopes }, completions) {
  const becomes = slopes.map(({ sum }) => (sum < 0 ? "likelier" : sum > 0 ? "less likely" : "not moved"));
  const lengths = completions.map(({ length }) => String(length));
  const of = (name) => column(slopes.map((one) => one[name]), { digits: SHOWN });
  return byCompletion("Loss and gradient by completion", ["tokens", "weight", "loss", "gradient", "becomes"],
    [lengths, of("weight"), column(terms, { digits: SHOWN }), of("sum"), becomes]);
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

export function updateStage(group, { update: words }) {
  const { update } = group.stages;
  const kind = group.source.rewards === undefined ? "recorded" : "typed";
  return {
    key: "update",
    ...words,
    happens: filled(words.happens[kind], { steps: stepsOf(group) }),
    watch: words.watch[kind],
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
  const columns = [column(advantages.completions, { sign: true }),
    of("probability_before"), of("probability_after"), times];
  return h("div", {},
    h("h3", {}, "How much likelier each completion became"),
    signedBars("Probability after the update over that before", bars).element,
    h("p", { class: "note" }, `Right: likelier. Left: less likely. The learning rate was ${plain(rate)}, the norm of the gradient ` +
      `${plain(norm)}${source.rewards === undefined ? " over the whole batch" : ""}.`),
    h("h3", {}, "Probabilities"),
    byCompletion("Probabilities before and after", ["advantage", "before", "after", "factor"], columns));
}
