// The stages of a group: what it was given, what its completions were worth, and what the update made of that.
import { h } from "../dom.js";
import { added, bracketed, column, deviationWorked, equals, meanWorked, plain, withSign } from "../numbers.js";
import { byCompletion, figures } from "../table.js";
import { counted, lossOfNothing, written } from "../text.js";
import { turnsOf } from "../turns.js";
import { advantageBars, signedBars } from "./bars.js";
import { clipStage, klStage } from "./curves.js";
import { advantageEquations, comparison, deviationOf, isAnchored, lossEquations, math, meanOf, rewardEquations, statisticsEquations,
  stepStatisticsEquations, term } from "./formulas.js";
import { filled } from "./walk.js";

const STOPS = { end: "ended at its end token", stop_string: "ended at a stop string", length: "truncated" };
const SETS = { steps: "all reasoning steps of the group", group: "the group", batch: "all groups of the batch" };
const MOST_STEPS = 8; // of one of steps
const SHOWN = 3; // digits in the tables of the last stages, at least

// By the key of its words: what a stage adds to them, from the lab's answer and the words.
export const STAGES = {
  prompt: promptStage, completions: completionsStage, rewards: rewardsStage, statistics: statisticsStage,
  advantages: advantagesStage, ratio: clipStage, kl: klStage, loss: lossStage, update: updateStage,
};

const isTyped = ({ rewards }) => rewards !== undefined;

// The prompt, its completions, and what the reward functions said of them

function promptStage({ stages: { prompt, completions } }, { typed }) {
  const body = () => (prompt.text === null ? h("p", { class: "note" }, filled(typed, { count: completions.length })) : h("div", {}, quoted(turnsOf(prompt.messages, prompt.text)),
    h("p", { class: "note" }, `${counted(prompt.tokens, "token")}, problem `, written(prompt.problem_id)), answer(prompt.columns)));
  return { body };
}

const quoted = (parts) => h("blockquote", { class: "quoted" }, parts);

function answer({ answer: found }) {
  if (found === undefined || found === null) return null;
  const text = typeof found === "string" ? found : JSON.stringify(found);
  return h("details", {}, h("summary", {}, "The correct answer, for the verifier"), quoted(written(text)));
}

function completionsStage({ stages: { prompt, completions } }, words) {
  const own = filled(words, { count: completions.length });
  const one = ({ text, length, stop_reason: stop }) =>
    h("li", {}, written(text), " ", h("span", { class: "note" }, `${counted(length, "token")}, ${STOPS[stop] ?? stop}`));
  const body = () => (prompt.text === null ? h("p", { class: "note" }, own.typed) : h("ol", { class: "tries", start: "0" }, completions.map(one)));
  return { ...own, body };
}

function rewardsStage(group, words) {
  const { source, algorithm, stages: { rewards } } = group;
  return {
    happens: isTyped(source) ? words.happens : judged(rewards),
    equation: isTyped(source) ? null : rewardEquations(algorithm, rewards.by_step.length > 0),
    body: () => h("div", {}, rewardTable(group, isTyped(source) ? [] : rewards.names)),
  };
}

function judged({ names, by_step: bySteps }) {
  const whole = names.length - bySteps.length;
  const said = whole === 1 ? "A reward function scores each completion. Its value, times its weight, is the reward." : `${whole} reward functions score each completion. The reward is the sum of their values times their weights.`;
  if (bySteps.length === 0) return said;
  const others = bySteps.length === 1 ? "Another reward function scores" : `${bySteps.length} others score`;
  return `${said} ${others} each reasoning step of a completion. This sum does not include those rewards: the next stage uses them.`;
}

function rewardTable({ algorithm, stages: { rewards, statistics } }, names) {
  const { weights, completions } = rewards, bySteps = rewards.by_step;
  const heads = names.map((name) => [written(name), bySteps.includes(name) ? ", mean of its steps"
    : weights[name] === null ? null : ` \u00d7 ${plain(weights[name])}`]);
  const columns = names.map((name) => components(completions.map((one) => one.components[name]), bySteps.includes(name)));
  const totals = column(completions.map(({ reward }) => reward)).map((text, place) =>
    (completions[place].reward === null ? invalid(completions[place]) : h("b", {}, text)));
  const after = isAnchored(algorithm) ? penalized(algorithm, completions, statistics) : [];
  return byCompletion("Rewards of the group", [...heads, math("reward r_i"), ...after.map(([head]) => head)],
    [...columns, totals, ...after.map(([, values]) => values)]);
}

function components(values, ofSteps) {
  const texts = column(values);
  const none = ofSteps ? "no steps" : "does not apply";
  return values.map((value, place) => (value === null || value === undefined ? none : texts[place]));
}

/** What the KL takes off, and what is left to be compared where that is one number for a completion. */
function penalized({ credit }, completions, { compared }) {
  const penalty = ["KL penalty", column(completions.map((one) => one.penalty))];
  return credit === "completion" ? [penalty, [math("compared R_i"), column(compared.rewards)]] : [penalty];
}

function invalid({ invalid_reason: reason }) {
  return [h("span", { class: "mark warn" }, "invalid"), reason ? [" ", written(reason)] : null];
}

// What a reward is compared with, worked out

function statisticsStage({ algorithm, stages: { statistics } }, words) {
  const bySteps = statistics.kind === "steps";
  // Whose rewards make the mean.
  const set = bySteps ? "steps" : comparison(statistics)?.mean_of ?? "group";
  return {
    happens: summedUp(statistics, SETS[set]),
    why: words.why[set],
    watch: words.watch + (bySteps ? words.steps : ""),
    equation: bySteps ? stepStatisticsEquations(statistics, words) : statisticsEquations(algorithm, statistics, words),
    body: () => h("div", {}, bySteps ? stepStatistics(statistics) : statisticsBody(statistics)),
  };
}

function summedUp(statistics, whose) {
  const one = comparison(statistics), bySteps = statistics.kind === "steps";
  if (!bySteps && !one?.mean_of && !one?.deviation_of) {
    return "GRPO computes the mean and the deviation of the group's rewards. This run uses neither.";
  }
  if (!bySteps && !one.deviation_of) return `The rewards of ${whose} are summarized by their mean.`;
  return `The rewards of ${whose} are summarized by their mean and their standard deviation.`;
}

function statisticsBody({ kind, compared, by_name: byName, ...found }) {
  if (kind === "components") return Object.entries(byName).map(([name, one]) => [h("h3", {}, written(name)), worked(one)]);
  return compared ? worked(compared) : h("p", {}, found.sentence);
}

function worked({ mean_of: of, without_signal: noSignal, sentence, fields, ...given }) {
  const set = of === "batch" ? given.batch : given;
  if (!of || set.mean === null) return h("p", {}, noSignal ?? sentence);
  return h("ul", { class: "worked" },
    h("li", {}, term("mu", meanOf(of)), " = ", meanWorked(set, of === "batch" ? null : given.rewards), of === "batch" ? " over the batch" : null),
    given.deviation_of ? scatter(given) : h("li", {}, fields.scale === "none" ? "This algorithm does not divide by the deviation." : sentence),
    noSignal ? h("li", {}, h("span", { class: "mark warn" }, "no signal"), " ", noSignal) : null);
}

function scatter({ squares, deviation_of: over, batch, ...own }) {
  const whole = over === "batch", shown = column(squares.filter((one) => one !== null)).join(", ");
  return [h("li", {}, `squared distances ${whole ? "of this group " : ""}from the mean: ${shown}`),
    h("li", {}, term("sigma", deviationOf(over)), " = ", deviationWorked(whole ? batch : own), whole ? " over the batch" : null)];
}

function stepStatistics({ steps, ...all }) {
  if (all.count === 0) return h("p", {}, "No completion of this group has a valid reward.");
  return [
    h("ul", { class: "worked" },
      h("li", {}, term("mu", "μ"), " = ", meanWorked(all), ` over the ${counted(all.count, "reasoning step")} below`),
      all.count > 1 ? h("li", {}, term("sigma", "σ"), " = ", deviationWorked(all)) : null),
    stepTable(steps)];
}

function stepTable(rows) {
  const all = rows.flatMap((steps, completion) => steps.map((step, place) => ({ ...step, completion, place, last: place === steps.length - 1 })));
  const of = (written) => all.map(written);
  return figures("Steps of the group", ["no.", "step", "ends at token", math("reward r_{i,k}"), math("normalized r\u0303_{i,k}")],
    [of(({ completion }) => String(completion)), of(({ place, last }) => (last ? "the completion" : String(place + 1))), of(({ end }) => String(end + 1)),
      column(of(({ reward }) => reward)), column(of(({ normalised }) => normalised), { sign: true })]);
}

// The advantages

function advantagesStage({ source, algorithm, stages: { statistics, advantages, rewards } }, words) {
  const { kind, compared } = statistics;
  return {
    ...filled(words, { sentence: statistics.sentence, what: advantages.by_token ? "its token" : "every token of its completion" }),
    watch: words.watch[advantages.by_token ? "token" : "completion"],
    equation: advantageEquations(algorithm, words),
    body: () => h("div", {},
      kind === "rewards" ? example(compared) : kind === "components" ? mixed(statistics, rewards, advantages) : null,
      kind === "steps" ? stepExample(statistics, advantages) : null,
      signedBars("Advantages", advantageBars(advantages.completions, rewards.completions.map(({ reward }) => reward))).element,
      isTyped(source) ? null : h("p", { class: "note" }, "The bars are the advantages that the run recorded.")),
  };
}

/** The first completion that has one, in numbers. */
function example({ rewards, baselines, gaps, divisors, advantages, fields: { scale, eps }, deviation_of: over, without_signal: noSignal }) {
  if (noSignal) return h("p", {}, noSignal);
  const index = rewards.findIndex((reward) => reward !== null);
  const [less, gap, divisor, own] = [baselines, gaps, divisors, advantages].map((values) => values[index]);
  const above = `Completion ${index}: ${plain(rewards[index])} \u2212 ${bracketed(less)} `;
  if (scale === "none") return h("p", {}, above, equals(own), h("b", {}, withSign(own)), ".");
  return h("p", {}, above, `${equals(gap)}${plain(gap)}, and ${plain(gap)} / ${plain(divisor)} `, equals(own),
    h("b", {}, withSign(own)), over ? `. The divisor includes \u03f5 = ${plain(eps)}.` : ".");
}

/** The same where each reward function is compared by itself: the weighted advantages of one completion, added up. */
function mixed({ by_name: byName }, { weights, completions }, { completions: advantages }) {
  const index = completions.findIndex(({ reward }) => reward !== null);
  if (index < 0) return null;
  const parts = Object.entries(byName).filter(([name, { advantages: own }]) => weights[name] !== null && own[index] !== null);
  const terms = parts.map(([name, { advantages: own }]) => `${plain(weights[name])} \u00d7 ${bracketed(own[index])}`);
  return h("p", {}, `Completion ${index}: ${terms.join(" + ")} ${equals(advantages[index])}`, h("b", {}, withSign(advantages[index])),
    `, from ${parts.map(([name]) => name).join(", ")}.`);
}

/** The completion with the most steps: which tokens are credited with which of them. The sums are the recorded advantages. */
function stepExample({ steps }, { tokens }) {
  const most = Math.max(...steps.map((row) => row.length));
  const index = steps.findIndex((row) => row.length === most);
  if (!tokens || most === 0) return null;
  const row = [...steps[index]].sort((one, other) => one.end - other.end);
  const stretches = row.map(({ end }, place) => ({ from: place ? row[place - 1].end + 1 : 0, end, left: row.slice(place) }));
  const credited = ({ from, end, left }) => {
    const advantage = tokens[index][end], which = from === end ? `token ${end + 1}` : `tokens ${from + 1} to ${end + 1}`;
    return h("li", {}, `${which}: `, added(left.map(({ normalised }) => bracketed(normalised)), MOST_STEPS), " ",
      equals(advantage), h("b", {}, withSign(advantage)));
  };
  return h("div", {}, h("p", {}, `Completion ${index}, token by token: each token gets the rewards of the reasoning steps that end at or after it.`),
    h("ul", { class: "worked" }, stretches.filter(({ from, end }) => from <= end).map(credited)));
}

// The loss with its gradient, and what the update did to the completions

function lossStage({ algorithm, stages: { loss, gradient, completions } }, words) {
  return {
    watch: words.watch[algorithm.aggregate] ?? words.watch.other,
    equation: lossEquations(algorithm, words),
    body: () => h("div", {}, lossTable(loss, gradient, completions), lossNote(loss)),
  };
}

function lossTable({ completions: terms }, { completions: slopes }, completions) {
  const becomes = slopes.map(({ sum }) => (sum < 0 ? "more probable" : sum > 0 ? "less probable" : "unchanged"));
  const lengths = completions.map(({ length }) => String(length));
  const of = (name) => column(slopes.map((one) => one[name]), { digits: SHOWN });
  return byCompletion("Loss and gradient by completion", ["tokens", "weight", "loss", "gradient", "becomes"],
    [lengths, of("weight"), column(terms, { digits: SHOWN }), of("sum"), becomes]);
}

const lossText = (loss) => lossOfNothing(loss) ?? plain(loss);

function lossNote({ share, surrogate, kl, step, batch }) {
  return h("p", { class: "note" },
    "Weight, loss and gradient are summed over the tokens; a gradient below 0 makes a completion more probable. " +
    `The batch has ${counted(batch.completions, "completion")} from ${counted(batch.groups, "group")}. This group contributes ${lossText(share)} to its loss: ` +
    `${lossText(surrogate)} from the advantages, ${lossText(kl)} from the KL.`,
    step === null ? null : ` The loss of the whole step was ${lossText(step)}.`,
    " The value of the loss says little by itself: the gradient moves the policy.");
}

function updateStage(group, words) {
  const kind = isTyped(group.source) ? "typed" : "recorded";
  return {
    happens: filled(words.happens[kind], { steps: stepsOf(group) }),
    watch: words.watch[kind],
    body: () => changes(group),
  };
}

/** How often the weights move before the next completions are written. */
function stepsOf({ algorithm: { updates_per_batch: updates, minibatches, passes }, stages: { loss: { batch } } }) {
  if (updates === 1) return "one update";
  const again = passes > 1 ? `, in ${passes} passes over the batch` : "";
  if (minibatches === 1) return `${updates} updates, one for each pass over the batch`;
  const each = batch.groups === 1 ? "" : ` for each of the ${batch.groups} groups of the batch`;
  if (batch.groups < minibatches) return `one update${each}${again}`;
  return `${updates} updates, each on a part of the batch${again}`;
}

function changes({ source, stages: { update, advantages } }) {
  const { completions, learning_rate: rate, grad_norm: norm } = update;
  const factors = completions.map(({ before, after }) => Math.exp(after - before));
  const times = column(factors, { digits: SHOWN }).map((text) => `\u00d7 ${text}`);
  // The axis is logarithmic: twice as likely and half as likely are equally far from the middle.
  const bars = factors.map((factor, index) =>
    ({ name: String(index), value: Math.log(factor), text: times[index] }));
  const of = (name) => column(completions.map((one) => Math.exp(one[name])));
  return h("div", {},
    h("h3", {}, "How much more probable each completion became"),
    signedBars("Probability after the update over the probability before", bars).element,
    h("p", { class: "note" }, `Right: more probable. Left: less probable. The learning rate was ${plain(rate)}, the norm of the gradient ` +
      `${plain(norm)}${isTyped(source) ? "" : " over the whole batch"}.`),
    h("h3", {}, "Probabilities"),
    byCompletion("Probabilities before and after", ["advantage", "before", "after", "factor"],
      [column(advantages.completions, { sign: true }), of("before"), of("after"), times]));
}
