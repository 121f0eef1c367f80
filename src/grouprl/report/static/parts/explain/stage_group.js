// The first stages: a prompt and its completions.
import { h } from "../dom.js";
import { written } from "../text.js";

const STOPS = { end: "ended by itself", stop_string: "ended at a stop string", length: "cut at the limit" };

export function promptStage({ stages: { prompt, completions } }) {
  return {
    key: "prompt",
    title: "A prompt",
    next: "a prompt",
    happens: "A step begins with a problem: a prompt, and what its verifier needs to know.",
    why: "GRPO learns by comparing answers to the same prompt. Everything below is about this one; a real step has many of them " +
      "side by side.",
    watch: "The policy reads the prompt alone. The right answer is for the verifier.",
    body: () => (prompt.text === null ? imagined(completions.length) : h("div", {}, quoted(prompt.text),
      h("p", { class: "note" }, `${prompt.tokens} tokens, problem `, written(prompt.problem_id)), answer(prompt.columns))),
  };
}

function imagined(count) {
  return h("p", { class: "note" }, "You gave the rewards yourself, so there is no text. Think of a prompt with " +
    `${count} possible completions, a single token each, that the policy finds equally probable.`);
}

function quoted(text) {
  return h("blockquote", { class: "quoted" }, written(text));
}

function answer({ answer: found }) {
  if (found === undefined || found === null) return null;
  const text = typeof found === "string" ? found : JSON.stringify(found);
  return h("details", {}, h("summary", {}, "The right answer, for the verifier"), quoted(text));
}

export function completionsStage({ stages: { prompt, completions } }) {
  const count = completions.length;
  return {
    key: "completions",
    title: `${count} completions`,
    next: `${count} completions`,
    happens: `The policy writes ${count} completions of the prompt: a group. Each token is drawn at random from the policy's ` +
      "distribution, so they differ.",
    why: "Several tries at one prompt can be measured against each other. That is what replaces PPO's critic.",
    watch: "Tries that come out alike cannot be told apart: a policy that is sure of itself, or a low temperature, makes groups " +
      "that teach nothing.",
    body: () => (prompt.text === null
      ? h("p", { class: "note" }, `Here each of the ${count} is one of the completions that the policy could have written.`)
      : h("ol", { class: "tries" }, completions.map(oneTry))),
  };
}

function oneTry({ text, length, stop_reason: stop }) {
  return h("li", {}, written(text), " ", h("span", { class: "note" }, `${length} tokens, ${STOPS[stop] ?? stop}`));
}
