// Any runs on one set of axes, with a table of their results and of the settings in which they differ.
import { note } from "../parts/address.js";
import { comparing, get, ofRun, queryOf, Refused } from "../parts/api.js";
import { compareCard, isMeasure, titleOf } from "../parts/compare/card.js";
import { claimCards } from "../parts/compare/claims.js";
import { comparisonFacts, comparisonHead, comparisonResults, variantsOf } from "../parts/compare/comparison.js";
import { bySeed, overSeeds } from "../parts/compare/seeds.js";
import { h, memberBox, put, refresh, toggle } from "../parts/dom.js";
import { look, swatch } from "../parts/legend.js";
import { byReward, Series } from "../parts/series.js";
import { table } from "../parts/table.js";
import { between, counted, fixed, named, number, share, time, visible } from "../parts/text.js";
import { definitions } from "../parts/titled.js";
import { howTo, polled, toolbar } from "../parts/view.js";

const EVERY = 4000; // milliseconds
const USUAL = ["reward", "greedy_accuracy", "eval/reward", "accuracy", "completions/mean_length", "kl", "entropy", "unsolved"];
const HEADS = ["Run", "Status", "Steps", "Measure", "Before", "Last", "95%", "pass@1 last", "Reward", "Tokens", "Training",
  "Tokens/s, mean", "Peak memory"];
// What differs between any two runs and says nothing about them.
const OWN = new Set(["name", "runs_dir"]);

/** Compares the runs of `parameters.runs`, ids with commas between, or shows a comparison; gives what ends it. */
export async function render(root, { runs: ids = "", comparison }, query) {
  const find = await definitions();
  const { found, top, below } = comparison === undefined ? await chosen(ids, query) : await whole(comparison);
  const page = { runs: found, find, query, metrics: new Set(query.get("metrics")?.split(",").map(decodeURIComponent) ?? USUAL) };
  const bar = toolbar(page, "compare", comparison !== undefined);
  const charts = h("div", { class: "grid" }), boxes = h("div", { class: "boxes" }), tables = h("div", {});
  const wrong = h("p", { class: "error", role: "status" });
  const metrics = h("details", { class: "card folded" }, h("summary", {}, "Metrics"), boxes);
  const drawn = found.length ? [legendOf(page), bar, howTo(false), metrics, h("h2", { class: "unseen" }, "Charts"), charts] : null;
  put(root, top, wrong, drawn, tables);
  const show = () => {
    refresh(boxes, offered(page), () => offered(page).map((name) => metricBox(name, page, charts)));
    arrange(page, charts);
    refresh(tables, page.runs.map(({ run, evaluations, series }) => [run.status, evaluations, series.length]), () => below(page));
    page.drawing.change();
  };
  show();
  const going = () => page.runs.filter(({ run }) => run.status === "running");
  const renewed = async () => going().length && Promise.all(going().map(renew));
  const end = comparison === undefined ? polled(EVERY, renewed, show, wrong) : () => {};
  return () => {
    end();
    page.drawing.end();
  };
}

/** Runs that the reader chose: the runs, what stands at the top of the page, and below the charts. */
async function chosen(ids, query) {
  const { runs: all } = await get("runs");
  const { found, missing } = await loaded(ids.split(",").filter(Boolean).map(decodeURIComponent));
  const title = found.length ? `Compare ${counted(found.length, "run")}` : "Compare runs";
  const none = found.length ? null : h("p", { class: "card empty" }, "Choose runs above, or on the page Runs.");
  const below = ({ runs }) => runs.length > 0 && [h("h2", {}, "Results"), results(runs), h("h2", {}, "Settings that differ"), differences(runs)];
  const groups = bySeed(found), several = groups.length < found.length, mean = several && query.get("seeds") === "mean";
  const choice = several && seedChoice(mean, ids, query);
  const top = [h("h1", {}, title), missing, runChooser(all, found.map(({ id }) => id)), choice, none];
  return mean ? { found: overSeeds(groups), top, below: () => below({ runs: found }) } : { found, top, below };
}

/** Switches between each run and the mean over seeds, which is another address. */
function seedChoice(mean, ids, query) {
  const other = (on) => {
    location.hash = comparing(ids.split(",").map(decodeURIComponent)) + queryOf({ ...Object.fromEntries(query), seeds: on ? "mean" : null });
  };
  return h("p", { class: "row" }, toggle(mean, other, "Mean over seeds"),
    mean && h("span", { class: "note" }, "Runs that differ only in their seed become one line: their mean, with a band from lowest to highest. Reload the page for newer steps."));
}

/** A comparison that was made with `grouprl compare`. */
async function whole(name) {
  const answer = await get(`comparisons/${encodeURIComponent(name)}`);
  const top = [h("h1", {}, visible(name)), comparisonHead(answer), claimCards(answer), comparisonResults(answer), h("h2", {}, "Curves")];
  return { found: variantsOf(answer), top, below: () => comparisonFacts(answer) };
}

/** The runs that are there, and a sentence for each that is not. */
async function loaded(wanted) {
  const asked = await Promise.allSettled(wanted.map((id, place) => renew({ id, look: look(place), series: new Series(), on: true })));
  const failed = asked.map(({ reason }, place) => [wanted[place], reason]).filter(([, reason]) => reason);
  const other = failed.find(([, reason]) => !(reason instanceof Refused));
  if (other) throw other[1];
  const missing = failed.map(([id, reason]) => h("p", { class: "error", role: "alert" },
    `${named(id)} cannot be compared: ${visible(reason.message)}`));
  return { found: asked.filter(({ value }) => value).map(({ value }) => value), missing };
}

/** The run and its metrics as they are now. */
async function renew(one) {
  one.run = await get(ofRun(one.id));
  one.evaluations = one.run.evaluations;
  if (one.run.metrics.length) one.series.fill(await get(ofRun(one.id, "series")));
  return one;
}

/** What some run has: the measures of its evaluations, then its metrics. */
function offered(page) {
  const measures = page.runs.flatMap(({ run, evaluations }) => [...evaluations.flatMap(Object.keys), ...(byReward(run, evaluations) ? ["eval/reward"] : [])]).filter(isMeasure);
  return [...new Set([...measures, ...page.runs.flatMap(({ series }) => series.names())])];
}

function metricBox(name, page, charts) {
  const changed = () => {
    note({ metrics: [...page.metrics].map(encodeURIComponent).join(",") });
    arrange(page, charts);
  };
  return h("label", {}, memberBox(page.metrics, name, changed), titleOf(name, page.find(name)));
}

function arrange(page, element) {
  const names = offered(page).filter((name) => page.metrics.has(name));
  const made = page.drawing.arrange(names, (name) => compareCard(name, page));
  refresh(element, names, () => made);
}

/** The runs by color; each can be switched off in all charts. */
function legendOf(page) {
  const items = page.runs.map((one) => toggle(true, (on) => {
    one.on = on;
    page.drawing.change();
  }, [swatch(one.look), named(one.id)], { class: "item" }));
  return h("div", { class: "chart-legend card", role: "group", "aria-label": "Runs that are shown" }, items);
}

/** All runs as boxes: another choice is another address. */
function runChooser(all, wanted) {
  const chosen = new Set(wanted);
  const boxes = all.filter((run) => run.status !== "broken").map(({ id }) => h("label", {}, memberBox(chosen, id), named(id)));
  const go = h("button", { type: "button", class: "main", onclick: () => { location.hash = comparing([...chosen]); } }, "Compare these");
  return h("details", { class: "card folded", open: wanted.length < 2 }, h("summary", {}, "Choose runs"),
    h("div", { class: "boxes" }, boxes), h("p", {}, go));
}

// What the compared runs came to, and in which settings they differ.

function results(runs) {
  return table("Results", HEADS, runs.map((one) => [linked(one), ...cells(one)]));
}

function linked({ id, look }) {
  return [swatch(look), " ", h("a", { href: `#/${ofRun(id)}` }, named(id))];
}

function cells({ run, series, evaluations }) {
  const [first, last] = [evaluations[0] ?? {}, evaluations.at(-1) ?? {}];
  const own = byReward(run, evaluations), form = own ? (row) => fixed(row.reward, 3) : (row) => share(row.greedy_accuracy);
  const interval = (own ? last.reward_interval : last.greedy_interval) ?? [];
  const seconds = run.status === "running" ? series.seconds.at(-1) : run.seconds, tokens = series.tokens.at(-1);
  const memory = run.summary.peak_rss_mib ?? series.last("rss_mib"); // the evaluation after the last step counts
  return [
    run.status, `${number(series.step.at(-1) ?? 0)} / ${number(run.steps)}`,
    own ? "mean reward" : "greedy accuracy", form(first), form(last),
    typeof interval[0] === "number" ? between(interval, own ? "" : "share") : number(null), share(last.pass_at_1),
    fixed(series.last("reward"), 3), number(tokens ?? null), time(seconds), number(seconds ? Math.round(tokens / seconds) : null),
    memory === null ? number(null) : `${number(Math.round(memory))} MiB`,
  ];
}

/** A row for each setting that is not the same in all runs. */
function differences(runs) {
  const flat = runs.map(({ run }) => new Map(leaves(run.config)));
  const names = [...new Set(flat.flatMap((settings) => [...settings.keys()]))].filter((name) => !OWN.has(name));
  const differ = names.filter((name) => new Set(flat.map((settings) => settings.get(name))).size > 1);
  if (!differ.length) return h("p", { class: "note" }, runs.length > 1 ? "None: these runs have the same configuration." : "None: there is only one run.");
  const values = (name) => flat.map((settings) => visible(settings.get(name) ?? "\u2013"));
  return table("Settings that differ", ["Setting", ...runs.map(linked)], differ.map((name) => [broken(name), ...values(name)]));
}

/** A dotted name that may continue on the next line after each of its parts, but not within a word. */
function broken(name) {
  return visible(name).split(/(?<=[._])/).flatMap((part) => [part, h("wbr")]);
}

/** A configuration as [dotted name, value as text]. */
function leaves(value, name = "") {
  if (typeof value === "string") return [[name, value]];
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[name, JSON.stringify(value)]];
  return Object.entries(value).flatMap(([key, inside]) => leaves(inside, name ? `${name}.${key}` : key));
}
