// The first stages: a prompt, its completions, and what the reward functions said of them.
import { h } from "../dom.js";
import { column, plain } from "../numbers.js";
import { byCompletion } from "../table.js";
import { written } from "../text.js";
import { isAnchored, rewardEquations } from "./formulas.js";
import { filled, math } from "./stages.js";

const STOPS = { end: "ended by itself", stop_string: "ended at a stop string", length: "cut at the limit" };

export function promptStage({ stages: { prompt, completions } }, { prompt: words }) {
  return {
    key: "prompt",
    ...words,
    body: () => (prompt.text === null ? h("p", { class: "note" }, filled(words.typed, { count: completions.length })) : h("div", {}, quoted(prompt.text),
      h("p", { class: "note" }, `${prompt.tokens} tokens, problem `, written(prompt.problem_id)), answer(prompt.columns))),
  };
}

function quoted(text) {
  return h("blockquote", { class: "quoted" }, written(text));
}

function answer({ answer: found }) {
  if (found === undefined || found === null) return null;
  const text = typeof found === "string" ? found : JSON.stringify(found);
  return h("details", {}, h("summary", {}, "The right answer, for the verifier"), quoted(text));
}

export function completionsStage({ stages: { prompt, completions } }, { completions: words }) {
  const count = completions.length;
  return {
    key: "completions",
    ...filled(words, { count }),
    body: () => (prompt.text === null ? h("p", { class: "note" }, filled(words.typed, { count }))
      : h("ol", { class: "tries" }, completions.map(oneTry))),
  };
}

function oneTry({ text, length, stop_reason: stop }) {
  return h("li", {}, written(text), " ", h("span", { class: "note" }, `${length} tokens, ${STOPS[stop] ?? stop}`));
}

export function rewardsStage(group, { rewards: words }) {
  const { source, algorithm, stages: { rewards } } = group;
  const typed = source.rewards !== undefined;
  return {
    key: "rewards",
    ...words,
    happens: typed ? words.happens : judged(rewards),
    equation: typed ? null : rewardEquations(algorithm, (rewards.by_step ?? []).length > 0),
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

function table({ algorithm, stages: { rewards, statistics } }, parts) {
  const { names, weights, completions } = rewards, bySteps = rewards.by_step ?? [];
  const shown = parts ? names : [];
  const heads = shown.map((name) => [written(name), bySteps.includes(name) ? ", mean of its steps"
    : weights[name] === null ? null : ` \u00d7 ${plain(weights[name])}`]);
  const columns = shown.map((name) => components(completions.map((one) => one.components[name]), bySteps.includes(name)));
  const totals = column(completions.map(({ reward }) => reward)).map((text, place) =>
    (completions[place].reward === null ? invalid(completions[place].invalid_reason) : h("b", {}, text)));
  const after = isAnchored(algorithm) ? penalised(algorithm, completions, statistics) : [];
  return byCompletion("Rewards of the group", [...heads, math("reward r_i"), ...after.map(([head]) => head)],
    [...columns, totals, ...after.map(([, values]) => values)]);
}

function components(values, ofSteps) {
  const texts = column(values);
  const none = ofSteps ? "no steps" : "does not apply";
  return values.map((value, place) => (value === null || value === undefined ? none : texts[place]));
}

/** What the KL takes off, and what is left to be compared where that is one number for a completion. */
function penalised({ credit }, completions, { compared }) {
  const penalty = ["KL penalty", column(completions.map((one) => one.penalty))];
  return credit === "completion" ? [penalty, [math("compared R_i"), column(compared.rewards)]] : [penalty];
}

function invalid(reason) {
  return [h("span", { class: "mark warn" }, "invalid"), reason ? [" ", written(reason)] : null];
}
