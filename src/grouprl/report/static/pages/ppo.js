// PPO beside GRPO: what flows where, what lies in memory, and what was measured.
import { h, put } from "../parts/dom.js";
import { measuredSection } from "../parts/explain/measured.js";
import { memorySection } from "../parts/explain/memory.js";
import { grpoPipeline, ppoPipeline } from "../parts/explain/pipelines.js";

export function render(page) {
  page.classList.add("explains");
  const [memory, measured] = [memorySection(), measuredSection()];
  put(page,
    h("h1", {}, "PPO and GRPO"),
    h("p", { class: "lead" }, "Both make likelier what went better than expected, and hold the policy near a reference. They differ in who says " +
      "what was to be expected: PPO trains a second network for it, GRPO asks the other completions of the same prompt."),
    pipelines(), critic(), memory.element, measured.element);
  return () => [memory, measured].forEach((one) => one.end());
}

function pipelines() {
  return h("section", { "aria-labelledby": "flow" },
    h("h2", { id: "flow" }, "What flows where"),
    h("div", { class: "two" },
      h("figure", { class: "card flow" }, h("figcaption", {}, h("h3", {}, "GRPO: the group is the baseline")), grpoPipeline()),
      h("figure", { class: "card flow" }, h("figcaption", {}, h("h3", {}, "PPO: a critic is the baseline")), ppoPipeline())),
    h("p", { class: "note after" }, "Thick frame: a network that is trained. Dashed frame: frozen. No frame: arithmetic without a network. " +
      "A verifier is a rule; only a reward model is a network."));
}

function critic() {
  return h("section", { "aria-labelledby": "critic" },
    h("h2", { id: "critic" }, "What the critic buys, and what it costs"),
    h("p", { class: "lead" }, "It buys credit token by token, and a baseline that needs no siblings: a prompt can be tried once, and " +
      "completions that all come out alike can still be better or worse than expected."),
    h("p", { class: "lead" }, "It costs a second network with gradients and moments of its own, a forward and a backward pass in every " +
      "update, and settings to tune; and until it has learned to predict, its baseline is noise."));
}
