// What the compared runs came to, and in which settings they differ.
import { h } from "../dom.js";
import { swatch } from "../legend.js";
import { table } from "../table.js";
import { number, visible } from "../text.js";
import { between, fixed, share, time } from "../units.js";

const HEADS = ["Run", "Status", "Steps", "Greedy before", "Greedy last", "95 %", "pass@1 last", "Reward", "Tokens", "Training",
  "Tokens/s, mean", "Peak memory"];
// What differs between any two runs and says nothing about them.
const OWN = new Set(["name", "runs_dir"]);

/** A row for each run. */
export function results(runs) {
  return table("Results", HEADS, runs.map((one) => [named(one), ...cells(one)]));
}

function named({ id, look }) {
  return [swatch(look), " ", h("a", { href: `#/runs/${encodeURIComponent(id)}` }, visible(id.replaceAll("~", "/")))];
}

function cells({ run, series, evaluations }) {
  const [first, last] = [evaluations[0] ?? {}, evaluations.at(-1) ?? {}];
  const interval = last.greedy_interval ?? [];
  const seconds = run.status === "running" ? series.seconds.at(-1) : run.seconds, tokens = series.tokens.at(-1);
  const memory = series.last("rss_mib");
  return [
    run.status, `${number(series.step.at(-1) ?? 0)} / ${number(run.steps)}`,
    share(first.greedy_accuracy), share(last.greedy_accuracy),
    typeof interval[0] === "number" ? between(interval) : number(null), share(last.pass_at_1),
    fixed(series.last("reward"), 3), number(tokens ?? null), time(seconds), number(seconds ? Math.round(tokens / seconds) : null),
    memory === null ? number(null) : `${number(Math.round(memory))} MiB`,
  ];
}

/** A row for each setting that is not the same in all runs. */
export function differences(runs) {
  const flat = runs.map(({ run }) => new Map(leaves(run.config)));
  const names = [...new Set(flat.flatMap((settings) => [...settings.keys()]))].filter((name) => !OWN.has(name));
  const differ = names.filter((name) => new Set(flat.map((settings) => settings.get(name))).size > 1);
  if (!differ.length) return h("p", { class: "note" }, runs.length > 1 ? "None: these runs have the same configuration." : "There is one run.");
  const values = (name) => flat.map((settings) => visible(settings.get(name) ?? "\u2013"));
  return table("Settings that differ", ["Setting", ...runs.map(named)], differ.map((name) => [broken(name), ...values(name)]));
}

/** A dotted name that may go on in the next line after each of its parts, and not within a word. */
function broken(name) {
  return visible(name).split(/(?<=[._])/).flatMap((part) => [part, h("wbr")]);
}

/** A configuration as [dotted name, value as text]. */
function leaves(value, name = "") {
  if (typeof value === "string") return [[name, value]];
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[name, JSON.stringify(value)]];
  return Object.entries(value).flatMap(([key, inside]) => leaves(inside, name ? `${name}.${key}` : key));
}
