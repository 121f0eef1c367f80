// All numbers of one token, at a place that does not move.
import { h, put } from "../dom.js";
import { number, percent, signed, visible } from "../text.js";

const CLIPPED = { low: "yes, below", high: "yes, above", dual: "yes, by the dual clip" };
const logprob = (value) => number(value, 4).replace("-", "\u2212");

// Of each line: its words, the list in the lab's answer, and how a number of it is written.
const LINES = [
  ["Advantage", "advantages", (value) => signed(value, 4)],
  ["Probability", "probabilities", percent],
  ["Ratio", "ratios", (value) => number(value, 5)],
  ["Clipped", "clipped", (value) => CLIPPED[value] ?? "no"],
  ["KL", "kl", (value) => number(value, 5)],
  ["Entropy", "entropies", (value) => number(value, 4)],
  ["Change", "changes", (value) => signed(value, 5)],
  ["Log-prob, sampler", "logprobs", logprob],
  ["Log-prob, plain", "plain_logprobs", logprob],
  ["Log-prob, learner", "learner_logprobs", logprob],
  ["Log-prob, reference", "reference_logprobs", logprob],
  ["Log-prob, updated", "updated_logprobs", logprob],
];

/** {element, show(place)} for a completion as the lab gives it. */
export function tokenPanel(found) {
  const element = h("aside", { class: "tokenpanel", tabindex: "0", "aria-live": "polite", "aria-label": "Numbers of the token" });
  let shown = -1;
  return {
    element,
    show(place) {
      if (place === shown) return;
      shown = place;
      const { id, text, half } = found.tokens[place];
      put(element,
        h("h4", {}, h("span", { class: "text" }, text === null ? `#${id}` : visible(JSON.stringify(text)))),
        h("p", { class: "note" }, `Token ${place + 1} of ${number(found.tokens.length)}, id ${id}${half ? ", part of a character" : ""}`),
        h("dl", {}, LINES.map(([words, name, written]) => [
          h("dt", {}, words),
          h("dd", {}, found[name] === null ? "not recorded" : written(found[name][place])),
        ])));
    },
  };
}
