// What GRPO and PPO came to where both were run.
import { h, put } from "../dom.js";
import { number, visible, written } from "../text.js";
import { asking } from "./ask.js";
import { signedBars } from "./bars.js";
import { figures } from "./figures.js";

const SHOWN = ["grpo", "ppo"];
const FIGURES = [
  ["greedy_accuracy", "greedy accuracy after", share],
  ["sampled_accuracy", "sampled, last tenth", share],
  ["sampled_steps_to_90", "steps to 90 %", fixed(1)],
  ["sampled_tokens_to_90", "tokens to 90 %", fixed(0)],
  ["sampled_seconds_to_90", "seconds to 90 %", fixed(1)],
  ["seconds_per_step", "seconds a step", fixed(2)],
  ["peak_rss_mib", "peak MiB", fixed(0)],
];
const DRAWN = [
  ["sampled_steps_to_90", "Steps until 90 % of the samples are right"],
  ["sampled_seconds_to_90", "Seconds until then"],
  ["seconds_per_step", "Seconds a step"],
];

/** As many digits behind the point for all numbers of a column. */
function fixed(digits) {
  const shown = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return (value) => (Number.isFinite(value) ? value.toLocaleString("en", shown) : number(null));
}

function share(value) {
  return Number.isFinite(value) ? `${fixed(1)(100 * value)} %` : number(null);
}

/** The section; gives {element, end()}. */
export function measuredSection() {
  const box = h("div", {}, h("p", { class: "note" }, "Loading."));
  const asked = asking("comparison", ({ source, comparisons }) => put(box, comparisons.map((one) => comparison(one, source))),
    (error) => put(box, h("p", { class: "error" }, error.message)));
  asked.now({});
  const title = h("h2", { id: "measured" }, "What was measured");
  return { element: h("section", { "aria-labelledby": "measured" }, title, box), end: asked.end };
}

function comparison(one, source) {
  const chosen = one.variants.filter(({ algorithm }) => SHOWN.includes(algorithm));
  const variants = SHOWN.every((name) => chosen.some(({ algorithm }) => algorithm === name)) ? chosen : one.variants;
  return h("div", { class: "card measured" },
    h("p", {}, whence(one, source)),
    h("div", { class: "three" }, DRAWN.map(([name, title]) => h("div", {}, h("h3", {}, title), bars(name, title, variants)))),
    figures("What was measured", ["variant", "updates a step", "critic", ...FIGURES.map(([, title]) => title)], variants.map(row)),
    one.verdict ? h("p", {}, visible(one.verdict)) : null,
    one.sentences ? found(one.sentences) : null);
}

function found(sentences) {
  return h("details", {}, h("summary", {}, "What was made of it"),
    h("ul", { class: "found" }, sentences.map((sentence) => h("li", {}, visible(sentence)))));
}

function whence({ name, seeds, setting, machine, command, page }, source) {
  const by = `Means over ${seeds.length} seed${seeds.length === 1 ? "" : "s"}`;
  if (source === "runs") return [`${by} of the comparison `, written(name), " in this folder of runs."];
  return [`${by}: ${setting}; ${machine}. Made with `, h("code", {}, command), ` (${page}).`];
}

function bars(name, title, variants) {
  const [, , form] = FIGURES.find(([figure]) => figure === name);
  const rows = variants.map((variant) => {
    const { mean } = variant.figures[name];
    return { name: visible(variant.name), value: mean, text: form(mean) };
  });
  return signedBars(title, rows, { names: 118 }).element;
}

function row({ name, updates, critic, figures: all }) {
  return [written(name), String(updates), critic ?? "none", ...FIGURES.map(([figure, , form]) => withInterval(all[figure], form))];
}

function withInterval({ mean, interval }, form) {
  return interval ? `${form(mean)} (${form(interval[0])} to ${form(interval[1])})` : form(mean);
}
