// PPO beside GRPO: what flows where, and what lies in memory.
import { asking } from "../parts/address.js";
import { file } from "../parts/api.js";
import { field, h, options, put, select } from "../parts/dom.js";
import { stackedBar } from "../parts/explain/bars.js";
import { sumOf, table } from "../parts/table.js";
import { fixed, number } from "../parts/text.js";

export async function render(page) {
  page.classList.add("explains");
  const words = await file("ppo_grpo.json");
  const memory = memorySection(words);
  put(page,
    h("h1", {}, "PPO and GRPO"),
    h("p", { class: "lead" }, words.lead),
    pipelines(words), sideBySide(words), memory.element,
    h("p", { class: "note" }, "Compare them yourself: ", h("code", {}, "grouprl compare ladder --vary algorithm=grpo,ppo --seeds 3"), " in a terminal trains both."));
  return memory.end;
}

function pipelines({ flow: [grpo, ppo], frames }) {
  return h("section", { "aria-labelledby": "flow" },
    h("h2", { id: "flow" }, "Data flow"),
    h("div", { class: "two" },
      h("figure", { class: "card flow" }, h("figcaption", {}, h("h3", {}, "GRPO: the group is the baseline")), h("img", { src: "static/grpo.svg", alt: grpo })),
      h("figure", { class: "card flow" }, h("figcaption", {}, h("h3", {}, "PPO: a critic is the baseline")), h("img", { src: "static/ppo.svg", alt: ppo }))),
    h("p", { class: "note after" }, frames));
}

/** The table, and what the critic buys and costs folded below it. */
function sideBySide({ rows, critic }) {
  return h("section", { "aria-labelledby": "side" }, h("h2", { id: "side" }, "Side by side"),
    table("PPO and GRPO side by side", ["", "GRPO", "PPO"], rows, { kind: "words", look: "card side-by-side" }),
    h("details", { class: "note after" }, h("summary", {}, "Benefit and cost of the critic"), critic.map((words) => h("p", {}, words))));
}

// What lies in the memory of a GPU under GRPO and under PPO, for a model of a chosen size: planned, not measured.

// Color of the planner's parts that a bar is stacked of, and its strength, from the left; the rest is one piece.
const LOOKS = { policy: [1, 1], adapter: [1, 0.86], gradients: [1, 0.72], moments: [1, 0.45], reference: [3, 1], reward_model: [4, 1],
  critic: [2, 1], critic_gradients: [2, 0.72], critic_moments: [2, 0.45], activations: [6, 1], cache: [5, 1] };
const STACKED = Object.keys(LOOKS);
const NAMES = { grpo: "GRPO", ppo: "PPO" };
const OF_CONFIG = /^(hidden_size|num_.*|n_routed_experts|intermediate_size|vocab_size|head_dim|tie_word_embeddings|model_type|attention_bias)$/;

/** The section with its inputs; gives {element, end()}. */
function memorySection({ memory, fields: { judges, numbers, choices, gpus } }) {
  const read = h("div", {}), fits = h("p", { role: "status" });
  const picture = h("div", { class: "stacks", role: "img" });
  const known = h("datalist", { id: "known" }), gpu = select(gpus, null, { onchange: () => ask() });
  const model = h("input", { name: "model", list: "known", placeholder: "Qwen2.5-1.5B", spellcheck: "false" });
  let config = "";
  const own = h("input", { type: "file", accept: ".json", onchange: async () => {
    config = own.files.length ? await shapeIn(own.files[0]) : "";
    if (config) model.value = "";
    ask();
  } });
  const asked = asking("memory", (answer) => {
    planned.hidden = false;
    put(known, options(answer.models.map((name) => [name, name])));
    picture.setAttribute("aria-label", spoken(answer));
    put(picture, stacks(answer.plans));
    put(fits, gpu.value && Object.entries(answer.plans).map(([name, { sums: { peak } }]) => `${NAMES[name]} ${peak <= gpu.value * 2 ** 30 ? "fits" : "does not fit"}. `));
    put(read, h("p", {}, memory), details(answer));
  }, (sentence) => {
    planned.hidden = true; // or the plan of something else would stand below the error
    put(asked.failed, sentence);
  });
  const planned = h("div", { hidden: "" }, fits, picture, read); // until there is an answer
  const number = ([name, words, value]) => field(words, h("input", { name, type: "number", min: 1, value }));
  const choice = ([name, words, pairs]) => field(words, select(pairs, null, { name }));
  const inputs = h("div", { class: "controls", onchange: ({ target: { name } }) => {
    if (name === "model") own.value = config = "";
    if (name) ask();
  } },
    h("div", { class: "row" }, field("Model: a name or hub id", model), known, field("or its config.json", own),
      field("Reward model", select(judges, null, { name: "reward_model" })), field("GPU", gpu)),
    h("details", {}, h("summary", {}, "Batch, adapter and memory settings"), h("div", { class: "row" }, numbers.map(number), choices.map(choice))));
  const ask = () => asked.now({ ...Object.fromEntries([...inputs.querySelectorAll("[name]")].map(({ name, value }) => [name, value])),
    ...(config ? { model: "", config } : {}) });
  ask();
  const element = h("section", { "aria-labelledby": "memory" },
    h("h2", { id: "memory" }, "Memory plan"), h("div", { class: "card" }, inputs, asked.failed, planned));
  return { element, end: asked.end };
}

/** What a config.json says of a model's shape, as JSON; of a file that is none, its beginning, which the lab refuses. */
async function shapeIn(file) {
  const text = await file.text();
  try {
    return JSON.stringify(Object.fromEntries(Object.entries(JSON.parse(text)).filter(([name]) => OF_CONFIG.test(name))));
  } catch {
    return text.slice(0, 80) || file.name;
  }
}

function spoken({ model, plans }) {
  const unit = unitOf(plans);
  const each = Object.entries(plans).map(([name, plan]) => `${NAMES[name]} ${unit.text(plan.sums.peak)}`);
  return `Peak memory of ${model.name}: ${each.join(", ")}`;
}

/** GiB, or MiB where all is smaller. */
function unitOf(plans) {
  const most = Math.max(...Object.values(plans).map(({ sums }) => sums.peak));
  const [name, size] = most >= 2 ** 30 ? ["GiB", 2 ** 30] : ["MiB", 2 ** 20];
  return { name, size, most, text: (bytes) => `${(bytes / size).toFixed(2)} ${name}` };
}

function stacks(plans) {
  const unit = unitOf(plans);
  return Object.entries(plans).map(([name, { sums, blocks: { held, learning } }]) => {
    const parts = STACKED.map((part, place) => ({ ...lookOf(part), size: held[part] ?? learning[part] ?? 0, key: place + 1 }));
    return h("div", {}, h("b", {}, `${NAMES[name]}: ${unit.text(sums.peak)}`),
      stackedBar([...parts, { ...lookOf(), size: sums.learning - sumOf(parts.map(({ size }) => size)), key: STACKED.length + 1 }], unit.most));
  });
}

function lookOf(part) {
  const [look, strength] = LOOKS[part] ?? [];
  return { variable: look ? `--series-${look}` : "--line", strength };
}

/** The planner's parts and sums as `grouprl plan` shows them, with the keys of the bars; and models of four sizes. */
function details({ plans, compared, names, step, parameters, model }) {
  const unit = unitOf(plans), of = Object.values(plans), heads = Object.keys(plans).map((name) => NAMES[name]);
  const shown = (bytes) => (bytes ? unit.text(bytes) : "none");
  const rows = Object.keys(of[0].blocks).flatMap((block) => [
    ...Object.keys(names).filter((part) => of.some(({ blocks }) => blocks[block][part]))
      .map((part) => [keyed(part, names[part], block !== "sampling"), ...of.map(({ blocks }) => shown(blocks[block][part]))]),
    [h("b", {}, names[block]), ...of.map(({ sums }) => h("b", {}, unit.text(sums[block])))],
  ]);
  const gib = (bytes) => fixed(bytes / 2 ** 30, 1), peaks = ["held", "learning", "sampling"];
  const sizes = Object.entries(compared).map(([name, each]) => [name, ...Object.values(each).flatMap((sums) => peaks.map((sum) => gib(sums[sum]))),
    fixed(each.ppo.peak / each.grpo.peak, 2)]);
  return [table("Memory by part", ["part", ...heads], rows, { look: "figures" }),
    h("p", { class: "note" }, `${model.name}, ${number(parameters)} parameters: plan for a step of ${step.problems} prompts of ` +
      `${step.prompt_tokens} tokens with ${step.group_size} completions of ${step.completion_tokens} tokens each, ` +
      `computed in ${step.dtype}, on ${step.device === "cuda" ? "one GPU" : "a CPU"}. Memory of torch itself is not included. A peak includes what ` +
      `is held; layers and logits never take memory together. Piece ${STACKED.length + 1} has all gray parts.`),
    h("h3", {}, "The same step with models of four sizes: held throughout, and the peaks, in GiB"),
    table("Memory of models of four sizes", ["model", ...heads.flatMap((name) => ["held", "update", "sampling"].map((sum) => `${name}: ${sum}`)),
      "PPO / GRPO"], sizes, { look: "figures" })];
}

function keyed(part, name, stacked) {
  const key = STACKED.indexOf(part) + 1 || STACKED.length + 1;
  return h("span", { class: "keyed" }, stacked && [h("span", { class: "key" }, String(key)), stackedBar([{ size: 1, ...lookOf(part) }], 1)], name);
}
