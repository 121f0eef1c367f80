// What lies in the memory of a GPU under GRPO and under PPO, for a model of a chosen size: planned, not measured.
import { h, put, s } from "../dom.js";
import { number } from "../text.js";
import { asking } from "./ask.js";
import { drawing, line, place, rect, text, ticks } from "./draw.js";
import { figures } from "./figures.js";

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
const BAR = 40;
const ROW = 84;

/** The section with its choices; gives {element, end()}. */
export function memorySection() {
  const failed = h("p", { class: "error" });
  const read = h("div", {});
  let plans = null;
  const picture = drawing("Memory of an update", (width) => (plans ? draw(width, plans) : [0]), { class: "stacks" });
  const model = h("select", { onchange: () => ask() });
  const judge = h("select", { onchange: () => ask() }, JUDGES.map(([value, name]) => h("option", { value }, name)));
  const asked = asking("memory", (answer) => {
    ({ plans } = answer);
    put(failed);
    put(model, answer.models.map((name) => h("option", { value: name, selected: name === answer.model.name }, name)));
    picture.svg.setAttribute("aria-label", spoken(answer));
    picture.redraw();
    put(read, details(answer));
  }, (error) => put(failed, error.message));
  const ask = () => asked.now({ model: model.value, reward_model: judge.value });
  ask();
  const field = (name, input) => h("label", { class: "field" }, h("span", {}, name), input);
  const element = h("section", { "aria-labelledby": "memory" },
    h("h2", { id: "memory" }, "What lies in memory"),
    h("div", { class: "card" },
      h("div", { class: "row controls" }, field("Model", model), field("Reward model", judge)),
      failed, picture.element, read));
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

function draw(width, plans) {
  const unit = unitOf(plans);
  const x = place(0, unit.most, 1, width - 1);
  const entries = Object.entries(plans);
  const bottom = entries.length * ROW + 4;
  const axis = ticks(0, unit.most / unit.size, width < 480 ? 3 : 6).map((value) => {
    const [at, anchor] = [x(value * unit.size), value ? "middle" : "start"];
    return [line(at, 0, at, bottom, "rule"),
      text(Math.min(at, width - 26), bottom + 16, `${number(value)} ${unit.name}`, { "text-anchor": anchor, class: "tick" })];
  });
  const stacks = entries.map(([name, plan], index) => stack(plan, `${NAMES[name]}: ${unit.text(plan.learning)}`, index * ROW, x));
  return [bottom + 24, axis, stacks];
}

function stack(plan, title, top, x) {
  let at = 0;
  const segments = PARTS.map(([, look, strength, of], index) => {
    const [from, to] = [x(at), x(at + of(plan))];
    at += of(plan);
    return segment(from, to, top + 24, `part look-${look}`, strength, index + 1);
  });
  const rest = segment(x(at), x(at + plan.rest), top + 24, "part rest", 1, PARTS.length + 1);
  return [text(2, top + 17, title, { class: "stack-name" }), segments, rest];
}

function segment(from, to, top, name, strength, key) {
  const [width, middle] = [to - from, (from + to) / 2];
  const chip = width < 22 ? null : [rect(middle - 10, top + BAR / 2 - 9, 20, 18, "chip", { rx: 4 }),
    text(middle, top + BAR / 2 + 4.5, String(key), { "text-anchor": "middle", class: "chip-name" })];
  return s("g", {}, rect(from, top, width, BAR, name, { "fill-opacity": strength }), chip);
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
    figures("Memory by part", ["part", ...Object.keys(plans).map((name) => NAMES[name])], rows),
    h("p", { class: "note" }, `${model.name}, ${number(parameters)} parameters: planned for a step of ${step.problems} prompts of ` +
      `${step.prompt_tokens} tokens with ${step.group_size} completions of ${step.completion_tokens} tokens each, weights in float32, ` +
      `computed in ${step.dtype}, on ${step.device === "cuda" ? "one GPU" : "a CPU"}. What torch itself needs is not counted.`)];
}

function keyed(key, name, look, strength) {
  const colour = look ? `part look-${look}` : "part rest";
  const swatch = s("svg", { width: 14, height: 14, "aria-hidden": "true" }, rect(0, 0, 14, 14, colour, { "fill-opacity": strength }));
  return h("span", { class: "keyed" }, h("span", { class: "key" }, String(key)), swatch, name);
}
