// Any runs on one set of axes, with a table of their results and of the settings in which they differ.
import { get, Gone, Refused } from "../parts/api.js";
import { definitions } from "../parts/definitions.js";
import { h, put } from "../parts/dom.js";
import { compareCard, isMeasure } from "../parts/compare/card.js";
import { chooser } from "../parts/compare/chooser.js";
import { differences, results } from "../parts/compare/tables.js";
import { look } from "../parts/colours.js";
import { swatch, write } from "../parts/legend.js";
import { howTo, toolbar } from "../parts/run/toolbar.js";
import { refresh } from "../parts/run/head.js";
import { LOST } from "../parts/run/status.js";
import { Series } from "../parts/series.js";
import { visible } from "../parts/text.js";
import { View } from "../parts/view.js";

const EVERY = 4000; // milliseconds
const USUAL = ["reward", "greedy_accuracy", "accuracy", "completions/mean_length", "kl", "entropy"];

/** Compares the runs of `parameters.runs`, ids with commas between; gives what ends it. */
export async function render(root, { runs: ids = "" }, query) {
  const [find, { runs: all }] = await Promise.all([definitions(), get("runs")]);
  const wanted = ids.split(",").filter(Boolean).map(decodeURIComponent);
  const { found, missing } = await loaded(wanted);
  const page = shared(found, find, query);
  const bar = toolbar(page, ["step", "tokens", "seconds"]);
  const charts = h("div", { class: "grid" }), table = h("div", {}), differ = h("div", {});
  const wrong = h("p", { class: "error", role: "status" });
  const metrics = chooser("Metrics", () => offered(page), page.metrics, find, () => {
    page.keep();
    arrange(page, charts);
  });
  const title = found.length === 1 ? "Compare a run" : `Compare ${found.length || ""} runs`;
  const below = found.length
    ? [legendOf(page), bar.element, howTo(false), metrics.element, charts,
      h("h2", {}, "Results"), table, h("h2", {}, "Settings that differ"), differ]
    : h("p", { class: "card empty" }, "Choose runs above, or on the page of all runs.");
  put(root, h("h1", {}, title), missing, wrong, runChooser(all, found.map(({ id }) => id)), below);
  page.changed = () => {
    bar.show();
    page.drawing.change();
  };
  const show = () => {
    metrics.show();
    arrange(page, charts);
    const state = page.runs.map(({ run, evaluations, series }) => [run.status, evaluations, series.length]);
    refresh(table, state, () => results(page.runs));
    refresh(differ, page.runs.map(({ run }) => run.config), () => differences(page.runs));
    page.drawing.change();
  };
  show();
  const end = repeated(page, show, wrong);
  return () => {
    end();
    page.drawing.end();
    page.cards.forEach((one) => one.end());
  };
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
  if (one.run.metrics.length) one.series.fill(await get(`${path}/series`, { names: one.run.metrics.join(",") }));
}

function shared(runs, find, query) {
  const known = query.get("metrics")?.split(",").map(decodeURIComponent);
  const page = {
    runs, find, query, cards: new Map(), drawing: new View(), metrics: new Set(known ?? USUAL),
    view: { axis: "step", smooth: false, zoom: null, sync: "compare" },
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
  for (const [name, one] of page.cards) {
    if (names.includes(name)) continue;
    page.drawing.remove(one);
    one.end();
    page.cards.delete(name);
  }
  for (const name of names) {
    if (page.cards.has(name)) continue;
    const one = compareCard(name, page);
    page.cards.set(name, one);
    page.drawing.add(one);
  }
  refresh(element, names, () => names.map((name) => page.cards.get(name).element));
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
