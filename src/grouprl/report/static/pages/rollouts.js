// K rollouts: the rewards of a group under the reader's hands, and what four algorithms make of them.
import { h, put } from "../parts/dom.js";
import { asking, keepAddress } from "../parts/explain/ask.js";
import { comparedAdvantages } from "../parts/explain/compared.js";
import { weightPlot } from "../parts/explain/weight.js";
import { readRewards, rewardEditor, writeRewards } from "../parts/explain/rewards.js";
import { verdicts } from "../parts/explain/verdicts.js";

const ALGORITHMS = [
  { name: "grpo", title: "GRPO" },
  { name: "dr_grpo", title: "Dr.GRPO" },
  { name: "rloo", title: "RLOO" },
  { name: "reinforce", title: "REINFORCE" },
];
const PRESETS = [
  ["6 of 10", [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]],
  ["Half and half", [1, 1, 1, 1, 0, 0, 0, 0]],
  ["One outlier", [0, 0, 0, 0, 0, 0, 0, 1]],
  ["All equal", [1, 1, 1, 1, 1, 1, 1, 1]],
];

export function render(page, parameters, query) {
  page.classList.add("explains");
  const [given, wrong] = start(query);
  const compared = comparedAdvantages(ALGORITHMS);
  const said = h("div", { class: "card verdicts", "aria-live": "polite" });
  const failed = (error) => put(said, h("p", { class: "error" }, error.message));
  const weight = weightPlot();
  const asked = asking("advantages", (answer) => {
    compared.show(answer);
    put(said, verdicts(answer).map((sentence) => h("p", {}, sentence)));
  }, failed);
  const parametersOf = (rewards) => ({ rewards: writeRewards(rewards), algorithms: ALGORITHMS.map(({ name }) => name).join(",") });
  const changed = (rewards) => {
    keepAddress("/rollouts", { rewards: writeRewards(rewards) });
    asked.soon(parametersOf(rewards));
    weight.show(rewards.length);
  };
  const editor = rewardEditor(given, changed);
  const presets = PRESETS.map(([name, rewards]) => h("button", { type: "button", onclick: () => editor.set(rewards) }, name));
  put(page,
    h("h1", {}, "K rollouts"),
    h("p", { class: "lead" }, "One prompt, K completions, K rewards. Move the rewards and see what each completion is worth to the update: " +
      "a positive advantage raises its probability, a negative one lowers it."),
    wrong ? h("p", { class: "error" }, wrong) : null,
    h("div", { class: "row presets", role: "group", "aria-label": "Examples" }, presets),
    h("section", { class: "card", "aria-label": "Rewards" }, h("h2", { class: "first" }, "Rewards"), editor.element),
    h("h2", {}, "Advantages"), compared.element, said,
    weight.element);
  asked.now(parametersOf(given));
  weight.show(given.length);
  return () => [asked, weight].forEach((one) => one.end());
}

function start(query) {
  const text = query.get("rewards");
  if (!text) return [PRESETS[0][1], null];
  try {
    return [readRewards(text), null];
  } catch (error) {
    return [PRESETS[0][1], `The rewards of this address could not be read: ${error.message}.`];
  }
}
