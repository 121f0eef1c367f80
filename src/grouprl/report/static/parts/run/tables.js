// The tables of a run: its evaluations, what its summary holds, its configuration.
import { h } from "../dom.js";
import { intervalName } from "../series.js";
import { number, visible } from "../text.js";
import { between, fixed, share, time } from "../units.js";
import { UNJUDGED } from "./plan.js";

const PLAIN = { step: "step", problems: "problems", mean_length: "mean length" };
const NONE = "None yet: the first is made before training.";
const SHARES = /^(greedy_accuracy|pass_at_\d+|.+_share)$/;

/** All evaluations, one per row, with 95 % intervals; `unjudged` for a run without a verifier. */
export function evaluationsTable(evaluations, unjudged) {
  const said = unjudged ? h("p", {}, UNJUDGED) : null;
  return [said, evaluations.length || !unjudged ? rows(evaluations) : null];
}

function rows(evaluations) {
  if (!evaluations.length) return h("p", { class: "note" }, NONE);
  const names = [...new Set(evaluations.flatMap(Object.keys))].filter((name) => name in PLAIN || SHARES.test(name));
  const ordered = ["step", ...names.filter((name) => !(name in PLAIN)), ...names.filter((name) => name in PLAIN && name !== "step")];
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Evaluations" }, h("table", {},
    h("thead", {}, h("tr", {}, ordered.map((name) => h("th", { class: "number", scope: "col" }, visible(title(name)))))),
    h("tbody", {}, evaluations.map((row) => h("tr", {}, ordered.map((name) => h("td", { class: "number" }, cell(row, name))))))));
}

function title(name) {
  if (name === "greedy_accuracy") return "greedy";
  return PLAIN[name] ?? name.replace(/^pass_at_/, "pass@").replace(/_share$/, "").replaceAll("_", " ");
}

function cell(row, name) {
  if (name === "mean_length") return fixed(row[name], 1);
  if (!SHARES.test(name)) return number(row[name]);
  const interval = row[intervalName(name)] ?? [];
  if (typeof interval[0] !== "number") return share(row[name]);
  return [share(row[name]), h("span", { class: "interval" }, between(interval))];
}

/** What summary.json holds besides the evaluations; nothing before the end. */
export function summaryTable(summary) {
  const rows = [
    ["Training", time(summary.train_seconds)], ["Training, loading, evaluation and saving", time(summary.total_seconds)],
    ["Completion tokens", number(summary.completion_tokens)], ["Peak memory", mebibytes(summary.peak_rss_mib)],
    ...Object.entries(summary.networks_mib ?? {}).map(([name, size]) => [`Memory of ${name.replaceAll("_", " ")}`, mebibytes(size)]),
    ...Object.entries(summary.machine ?? {}).map(([name, value]) => [`Machine: ${name}`, String(value)]),
  ];
  if (summary.train_seconds === undefined) return h("p", { class: "note" }, "The run writes summary.json when it ends.");
  return h("div", { class: "scroll" }, h("table", { class: "pairs" }, h("tbody", {},
    rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, visible(name)), h("td", {}, visible(value)))))));
}

function mebibytes(size) {
  return size === undefined ? number(null) : `${fixed(size, 1)} MiB`;
}
