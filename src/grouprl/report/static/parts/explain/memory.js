// What lies in the memory of a GPU under GRPO and under PPO, for a model of a chosen size: planned, not measured.
import { field, h, put } from "../dom.js";
import { table } from "../table.js";
import { number } from "../text.js";
import { asking } from "../address.js";
import { stackedBar } from "./bars.js";

// What a bar is stacked of, from the left: name, colour, strength of it, and where the plan has it.
const PARTS = [
  ["policy: weights", 1, 1, (plan) => plan.networks.policy.weights],
  ["policy: gradients", 1, 0.72, (plan) => plan.networks.policy.gradients],
  ["policy: AdamW's moments", 1, 0.45, (plan) => plan.networks.policy.moments],
  ["reference: weights", 3, 1, (plan) => plan.networks.reference.weights],
  ["reward model: weights", 4, 1, (plan) => plan.networks.reward_model.weights],
  ["critic: weights", 2, 1, (plan) => plan.networks.critic.weights],
  ["critic: gradients", 2, 0.72, (plan) => plan.networks.critic.gradients],
  ["critic: AdamW's moments", 2, 0.45, (plan) => plan.networks.critic.moments],
  ["activations", 6, 1, (plan) => plan.parts.activations],
  ["cache of keys and values", 5, 1, (plan) => plan.parts.cache],
];
const REST = "the rest: rounded copies of weights, and what a layer or the logits need";
const NAMES = { grpo: "GRPO", ppo: "PPO" };
const JUDGES = [["none", "for neither: a verifier"], ["both", "for both"], ["ppo", "for PPO alone"]];

/** The section with its choices; gives {element, end()}. */
export function memorySection() {
  const failed = h("p", { class: "error" });
  const read = h("div", {});
  const picture = h("div", { class: "stacks", role: "img" });
  const model = h("select", { onchange: () => ask() });
  const judge = h("select", { onchange: () => ask() }, JUDGES.map(([value, name]) => h("option", { value }, name)));
  const asked = asking("memory", (answer) => {
    put(failed);
    put(model, answer.models.map((name) => h("option", { value: name, selected: name === answer.model.name }, name)));
    picture.setAttribute("aria-label", spoken(answer));
    put(picture, stacks(answer.plans));
    put(read, details(answer));
  }, (error) => put(failed, error.message));
  const ask = () => asked.now({ model: model.value, reward_model: judge.value });
  ask();
  const element = h("section", { "aria-labelledby": "memory" },
    h("h2", { id: "memory" }, "What lies in memory"),
    h("div", { class: "card" },
      h("div", { class: "row controls" }, field("Model", model), field("Reward model", judge)),
      failed, picture, read));
  return { element, end: asked.end };
}

function spoken({ model, plans }) {
  const unit = unitOf(plans);
  const each = Object.entries(plans).map(([name, plan]) => `${NAMES[name]} ${unit.text(plan.learning)}`);
  return `Memory of an update of ${model.name}: ${each.join(", ")}`;
}

/** GiB, or MiB where all is smaller. */
function unitOf(plans) {
  const most = Math.max(...Object.values(plans).map(({ learning }) => learning));
  const [name, size] = most >= 2 ** 30 ? ["GiB", 2 ** 30] : ["MiB", 2 ** 20];
  return { name, size, most, text: (bytes) => `${(bytes / size).toFixed(2)} ${name}` };
}

function stacks(plans) {
  const unit = unitOf(plans);
  return Object.entries(plans).map(([name, plan]) => {
    const parts = PARTS.map(([, look, strength, of], place) => ({ size: of(plan), variable: `--series-${look}`, strength, key: place + 1 }));
    return h("div", {}, h("b", {}, `${NAMES[name]}: ${unit.text(plan.learning)}`),
      stackedBar([...parts, { size: plan.rest, variable: "--line", key: PARTS.length + 1 }], unit.most));
  });
}

function details({ plans, step, parameters, model, sentence }) {
  const unit = unitOf(plans);
  const of = Object.values(plans);
  const shown = (bytes) => (bytes === 0 ? "none" : unit.text(bytes));
  const rows = [
    ...PARTS.map(([name, look, strength, bytes], index) => [keyed(index + 1, name, look, strength), ...of.map((plan) => shown(bytes(plan)))]),
    [keyed(PARTS.length + 1, REST, null, 1), ...of.map(({ rest }) => shown(rest))],
    ["peak of an update", ...of.map(({ learning }) => h("b", {}, unit.text(learning)))],
    ["held all the time", ...of.map(({ held }) => unit.text(held))],
    ["peak of sampling", ...of.map(({ sampling }) => unit.text(sampling))],
  ];
  return [h("p", {}, sentence),
    table("Memory by part", ["part", ...Object.keys(plans).map((name) => NAMES[name])], rows, { look: "figures" }),
    h("p", { class: "note" }, `${model.name}, ${number(parameters)} parameters: planned for a step of ${step.problems} prompts of ` +
      `${step.prompt_tokens} tokens with ${step.group_size} completions of ${step.completion_tokens} tokens each, weights in float32, ` +
      `computed in ${step.dtype}, on ${step.device === "cuda" ? "one GPU" : "a CPU"}. What torch itself needs is not counted.`)];
}

function keyed(key, name, look, strength) {
  const sample = stackedBar([{ size: 1, variable: look ? `--series-${look}` : "--line", strength }], 1);
  return h("span", { class: "keyed" }, h("span", { class: "key" }, String(key)), sample, name);
}
