// PPO beside GRPO: what flows where, what lies in memory, and what was measured.
import { h, put } from "../parts/dom.js";
import { get } from "../parts/api.js";
import { comparisonHead, costTable } from "../parts/compare/comparison.js";
import { memorySection } from "../parts/explain/memory.js";
import { visible } from "../parts/text.js";

const GRPO = "GRPO. The policy, which is trained, writes G completions of one prompt. A verifier or a frozen reward model " +
  "gives each a reward, and the frozen reference its log-probs. From the rewards the group's mean and deviation " +
  "are computed, without a network, and from them one advantage for each completion. Advantages and KL meet in " +
  "the clipped objective, whose gradient updates the policy.";
const PPO = "PPO. The policy, which is trained, writes a completion of a prompt. A verifier or a frozen reward model " +
  "gives its reward, the frozen reference its log-probs, and the critic, a second network that is trained, a " +
  "value before each token. The reward less the KL becomes a reward for each token. Generalised advantage " +
  "estimation turns these and the values into an advantage and a return for each token. The clipped objective " +
  "updates the policy, and the value loss updates the critic.";

export function render(page) {
  page.classList.add("explains");
  const memory = memorySection();
  put(page,
    h("h1", {}, "PPO and GRPO"),
    h("p", { class: "lead" }, "Both make likelier what went better than expected, and hold the policy near a reference. They differ in who says " +
      "what was to be expected: PPO trains a second network for it, GRPO asks the other completions of the same prompt."),
    pipelines(), critic(), memory.element, measured());
  return memory.end;
}

/** The reader's own comparisons of runs with a critic and without one. */
function measured() {
  const box = h("div", {}, h("p", { class: "note" }, "Loading."));
  const none = h("p", {}, "Nothing yet: ", h("code", {}, "grouprl compare compare_family"), " in a terminal trains both, and shows here what they came to.");
  get("comparisons").then(({ comparisons }) => put(box, comparisons.length ? comparisons.map(shown) : none),
    (error) => put(box, h("p", { class: "error" }, visible(error.message))));
  return h("section", { "aria-labelledby": "measured" }, h("h2", { id: "measured" }, "What was measured"), box);
}

function shown(one) {
  return h("article", {}, h("h3", {}, h("a", { href: `#/comparison/${encodeURIComponent(one.name)}` }, visible(one.name))),
    comparisonHead(one), costTable(one));
}

function pipelines() {
  return h("section", { "aria-labelledby": "flow" },
    h("h2", { id: "flow" }, "What flows where"),
    h("div", { class: "two" },
      h("figure", { class: "card flow" }, h("figcaption", {}, h("h3", {}, "GRPO: the group is the baseline")), h("img", { src: "static/grpo.svg", alt: GRPO })),
      h("figure", { class: "card flow" }, h("figcaption", {}, h("h3", {}, "PPO: a critic is the baseline")), h("img", { src: "static/ppo.svg", alt: PPO }))),
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
