// What the reward functions said of the completions, and how it adds up.
import { h } from "../dom.js";
import { column, plain } from "../numbers.js";
import { written } from "../text.js";
import { equation, REWARD, v } from "./equation.js";
import { asRows, figures, indexHead } from "./figures.js";

export function rewardsStage(group) {
  const { source, algorithm, stages: { rewards } } = group;
  const typed = source.rewards !== undefined;
  return {
    key: "rewards",
    title: "Rewards",
    next: "rewards",
    happens: typed ? "Each completion has a reward. Here they are those that you gave." : judged(rewards),
    why: "The reward is all that training is told about right and wrong: whatever it pays for, the policy will learn.",
    watch: "A reward that could not be computed is invalid: its completion is left out, and never counted as 0.",
    equation: typed ? null : [sumEquation((rewards.by_step ?? []).length > 0), isAnchored(algorithm) ? penaltyEquation(algorithm) : null],
    body: () => h("div", {}, table(group, !typed)),
  };
}

function judged({ names, by_step: bySteps }) {
  if (bySteps === null) return "Each completion is judged by reward functions. Which of them judge its steps one by one was not recorded.";
  const whole = names.length - bySteps.length;
  const functions = whole === 1 ? "a reward function. Its value, times its weight, is" : `${whole} reward functions. Their values, times their weights, add up to`;
  const said = `Each completion is judged by ${functions} its reward.`;
  if (bySteps.length === 0) return said;
  const others = bySteps.length === 1 ? "Another reward function judges" : `${bySteps.length} others judge`;
  return `${said} ${others} the steps of a completion one by one. What a step earns is no part of this sum: it has its place in the next stage.`;
}

/** Whether the KL is taken off the reward of the whole completion, or of its tokens. */
function isAnchored({ kl_in: where, kl_coef: coefficient }) {
  return where === "reward" && coefficient > 0;
}

function sumEquation(some) {
  const said = `reward r i is the sum over the reward functions m${some ? " of whole completions" : ""} of weight omega m times reward r i m`;
  return equation(said, REWARD(), " = ", v("\u2211", "m"), " ", v("\u03c9", "m"), " ", v("r", "i,m"));
}

function penaltyEquation({ credit }) {
  if (credit !== "completion") return null; // each token has a penalty of its own
  const penalty = [h("i", {}, "\u03b2"), " ", v("\u2211", "t"), " ", v("D", "i,t")];
  return equation("the reward that is compared, R i, is r i less beta times the sum of the KL estimates D i t over the tokens",
    v("R", "i"), " = ", REWARD(), " \u2212 ", penalty);
}

function table({ algorithm, stages: { rewards, statistics } }, parts) {
  const { names, weights, completions } = rewards;
  const bySteps = rewards.by_step ?? [];
  const shown = parts ? names : [];
  const heads = shown.map((name) => [written(name), bySteps.includes(name) ? ", mean of its steps"
    : weights[name] === null ? null : ` \u00d7 ${plain(weights[name])}`]);
  const columns = shown.map((name) => components(completions.map((one) => one.components[name]), bySteps.includes(name)));
  const totals = column(completions.map(({ reward }) => reward)).map((text, place) =>
    (completions[place].reward === null ? invalid(completions[place].invalid_reason) : h("b", {}, text)));
  const after = isAnchored(algorithm) ? penalised(algorithm, completions, statistics) : [];
  return figures("Rewards of the group", [indexHead(), ...heads, ["reward ", REWARD()], ...after.map(([head]) => head)],
    asRows([completions.map((_, index) => String(index)), ...columns, totals, ...after.map(([, values]) => values)]));
}

function components(values, ofSteps) {
  const texts = column(values);
  const none = ofSteps ? "no steps" : "does not apply";
  return values.map((value, place) => (value === null || value === undefined ? none : texts[place]));
}

/** What the KL takes off, and what is left to be compared where that is one number for a completion. */
function penalised({ credit }, completions, { compared }) {
  const penalty = ["KL penalty", column(completions.map((one) => one.penalty))];
  return credit === "completion" ? [penalty, [["compared ", v("R", "i")], column(compared.worked.rewards)]] : [penalty];
}

function invalid(reason) {
  return [h("span", { class: "mark warn" }, "invalid"), reason ? [" ", written(reason)] : null];
}
