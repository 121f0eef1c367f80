// Any runs on one set of axes, with a table of their results and of the settings in which they differ.
import { get, Gone, Refused } from "../parts/api.js";
import { chooser, compareCard, isMeasure } from "../parts/compare/card.js";
import { comparisonFacts, comparisonHead, comparisonResults, variantsOf } from "../parts/compare/comparison.js";
import { definitions } from "../parts/definitions.js";
import { h, put } from "../parts/dom.js";
import { look, swatch, write } from "../parts/legend.js";
import { LOST, refresh } from "../parts/run/head.js";
import { differences, results } from "../parts/compare/tables.js";
import { howTo, toolbar } from "../parts/run/toolbar.js";
import { Series } from "../parts/series.js";
import { visible } from "../parts/text.js";
import { View } from "../parts/view.js";

const EVERY = 4000; // milliseconds
const USUAL = ["reward", "greedy_accuracy", "accuracy", "completions/mean_length", "kl", "entropy", "unsolved"];

/** Compares the runs of `parameters.runs`, ids with commas between, or shows a comparison; gives what ends it. */
export async function render(root, { runs: ids = "", comparison }, query) {
  const find = await definitions();
  const { found, top, below } = comparison === undefined ? await chosen(ids) : await whole(comparison);
  const page = shared(found, find, query, comparison);
  const bar = toolbar(page, ["step", "tokens", "seconds"]);
  const charts = h("div", { class: "grid" }), tables = h("div", {});
  const wrong = h("p", { class: "error", role: "status" });
  const metrics = chooser("Metrics", () => offered(page), page.metrics, find, () => {
    page.keep();
    arrange(page, charts);
  });
  const drawn = found.length ? [legendOf(page), bar.element, howTo(false), metrics.element, charts] : null;
  put(root, top, wrong, drawn, tables);
  page.changed = () => {
    bar.show();
    page.drawing.change();
  };
  const show = () => {
    metrics.show();
    arrange(page, charts);
    refresh(tables, page.runs.map(({ run, evaluations, series }) => [run.status, evaluations, series.length]), () => below(page));
    page.drawing.change();
  };
  show();
  const end = comparison === undefined ? repeated(page, show, wrong) : () => {};
  return () => {
    end();
    page.drawing.end();
  };
}

/** Runs that the reader chose: the runs, what stands at the top of the page, and below the charts. */
async function chosen(ids) {
  const { runs: all } = await get("runs");
  const { found, missing } = await loaded(ids.split(",").filter(Boolean).map(decodeURIComponent));
  const title = found.length === 1 ? "Compare a run" : `Compare ${found.length || ""} runs`;
  const none = found.length ? null : h("p", { class: "card empty" }, "Choose runs above, or on the page of all runs.");
  const below = ({ runs }) => runs.length && [h("h2", {}, "Results"), results(runs), h("h2", {}, "Settings that differ"), differences(runs)];
  return { found, below, top: [h("h1", {}, title), missing, runChooser(all, found.map(({ id }) => id)), none] };
}

/** A comparison that was made with `grouprl compare`. */
async function whole(name) {
  const answer = await get(`comparisons/${encodeURIComponent(name)}`);
  const top = [h("h1", {}, visible(name)), comparisonHead(answer), comparisonResults(answer), h("h2", {}, "Curves")];
  return { found: variantsOf(answer), top, below: () => comparisonFacts(answer) };
}

/** The runs that are there, and a sentence for each that is not. */
async function loaded(wanted) {
  const asked = await Promise.allSettled(wanted.map(load));
  const failed = asked.map(({ reason }, place) => [wanted[place], reason]).filter(([, reason]) => reason);
  const other = failed.find(([, reason]) => !(reason instanceof Refused));
  if (other) throw other[1];
  const missing = failed.map(([id, reason]) => h("p", { class: "error", role: "alert" },
    `${visible(id.replaceAll("~", "/"))} cannot be compared: ${visible(reason.message)}`));
  return { found: asked.filter(({ value }) => value).map(({ value }) => value), missing };
}

async function load(id, place) {
  const found = { id, look: look(place), series: new Series(), on: true };
  await renew(found);
  return found;
}

/** The run and its figures as they are now. */
async function renew(one) {
  const path = `runs/${encodeURIComponent(one.id)}`;
  one.run = await get(path);
  one.evaluations = one.run.evaluations;
  if (one.run.metrics.length) one.series.fill(await get(`${path}/series`));
}

function shared(runs, find, query, comparison) {
  const known = query.get("metrics")?.split(",").map(decodeURIComponent);
  const page = {
    runs, find, query, drawing: new View(), metrics: new Set(known ?? USUAL),
    view: { axis: "step", smooth: comparison !== undefined, zoom: null, sync: "compare" },
    changed: () => {},
    zoomed: (range) => {
      page.view.zoom = range;
      page.changed();
    },
    keep: () => {
      page.query.set("metrics", [...page.metrics].map(encodeURIComponent).join(","));
      history.replaceState(null, "", `${location.hash.split("?")[0]}?${page.query}`);
    },
  };
  return page;
}

/** What some run has: the measures of its evaluations, then its metrics. */
function offered(page) {
  const measures = page.runs.flatMap(({ evaluations }) => evaluations.flatMap(Object.keys)).filter(isMeasure);
  return [...new Set([...measures, ...page.runs.flatMap(({ series }) => series.names())])];
}

function arrange(page, element) {
  const names = offered(page).filter((name) => page.metrics.has(name));
  const made = page.drawing.arrange(names, (name) => compareCard(name, page));
  refresh(element, names, () => made);
}

/** The runs by colour; each can be switched off in all charts. */
function legendOf(page) {
  const items = page.runs.map((one) => {
    const button = h("button", { type: "button", class: "item", "aria-pressed": "true" },
      swatch(one.look), visible(one.id.replaceAll("~", "/")));
    button.addEventListener("click", () => {
      one.on = !one.on;
      button.setAttribute("aria-pressed", String(one.on));
      page.drawing.change();
    });
    return button;
  });
  return h("div", { class: "chart-legend card", role: "group", "aria-label": "Runs that are shown" }, items);
}

/** All runs as boxes: another choice is another address. */
function runChooser(all, wanted) {
  const chosen = new Set(wanted);
  const boxes = all.filter((run) => run.status !== "broken").map((run) => {
    const choose = () => (box.checked ? chosen.add(run.id) : chosen.delete(run.id));
    const box = h("input", { type: "checkbox", checked: chosen.has(run.id), onchange: choose });
    return h("label", {}, box, visible(run.id.replaceAll("~", "/")));
  });
  const go = h("button", { type: "button", class: "main", onclick: () => {
    location.hash = `#/compare/${[...chosen].map((id) => encodeURIComponent(encodeURIComponent(id))).join(",")}`;
  } }, "Compare these");
  return h("details", { class: "card folded", open: wanted.length < 2 }, h("summary", {}, "Choose runs"),
    h("div", { class: "boxes" }, boxes), h("p", {}, go));
}

/** Asks again and again for the runs that are not over. Not by events: browsers allow six connections. */
function repeated(page, show, wrong) {
  const timer = setInterval(async () => {
    const running = page.runs.filter(({ run }) => run.status === "running");
    if (document.hidden || !running.length) return;
    const renewed = await Promise.all(running.map(renew)).catch((error) => void write(wrong, error instanceof Gone ? LOST : error.message));
    if (!renewed) return;
    write(wrong, "");
    show();
  }, EVERY);
  return () => clearInterval(timer);
}
