// One run while it runs: its charts, evaluations and configuration, kept up to date by the lab's events.
import { follow, get } from "../parts/api.js";
import { definitions } from "../parts/definitions.js";
import { h, put } from "../parts/dom.js";
import { paced } from "../parts/pace.js";
import { card } from "../parts/run/card.js";
import { folded, head, refresh } from "../parts/run/head.js";
import { measuresOf, noVerifier, plan, UNJUDGED } from "../parts/run/plan.js";
import { evaluationsTable, summaryTable } from "../parts/run/tables.js";
import { howTo, toolbar } from "../parts/run/toolbar.js";
import { Series } from "../parts/series.js";
import { visible } from "../parts/text.js";
import { View } from "../parts/view.js";

const GAP = 1000; // milliseconds between two drawings of a run that goes on

/** Shows the run `parameters.run`; gives what ends it. */
export async function render(root, { run: id }, query) {
  const path = `runs/${encodeURIComponent(id)}`;
  const [run, find, { runs }] = await Promise.all([get(path), definitions(), get("runs")]);
  const page = await shared(id, run, find, query, path);
  const top = head(run, runs);
  const bar = toolbar(page, ["step", "tokens", "seconds"]);
  const charts = h("div", {}), tables = rest(run);
  put(root, top.element, bar.element, howTo(true), charts, tables.element);
  const show = () => {
    arrange(page, charts);
    top.show(page);
    tables.show(page);
    page.drawing.change();
  };
  page.changed = () => {
    bar.show();
    page.drawing.change();
  };
  show();
  const end = listen(page, path, show, top.lost);
  return () => {
    end();
    page.drawing.end();
    page.cards.forEach((one) => one.end());
  };
}

/** What the parts of the page share. */
async function shared(id, run, find, query, path) {
  const series = new Series();
  if (run.metrics.length) series.fill(await get(`${path}/series`, { names: run.metrics.join(",") }));
  const page = {
    id, run, find, series, evaluations: run.evaluations, cards: new Map(), drawing: new View(), query,
    view: { axis: "step", smooth: false, zoom: null, sync: `run ${id}` },
    open: (step) => { location.hash = `#/runs/${encodeURIComponent(id)}/groups/${step}`; },
    zoomed: (range) => {
      page.view.zoom = range;
      page.changed();
    },
    changed: () => {},
  };
  return page;
}

/** Puts the charts that the run has now in their places; those that stay are not made anew. */
function arrange(page, element) {
  const unjudged = noVerifier(page.series);
  const sections = plan(page.series.names(), measuresOf(page.evaluations), page.find, unjudged);
  const wanted = new Map(sections.flatMap(({ charts }) => charts).map((spec) => [spec.id, spec]));
  const key = [unjudged, ...wanted.keys()].join("\n");
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  for (const [id, one] of page.cards) if (!wanted.has(id)) forget(page, id, one);
  for (const [id, spec] of wanted) if (!page.cards.has(id)) page.cards.set(id, made(page, spec));
  const none = h("p", { class: "note" }, "No step yet: charts appear with the first.");
  put(element, sections.length ? sections.map((section) => shownSection(page, section)) : none);
}

function made(page, spec) {
  const one = card(spec, page);
  page.drawing.add(one);
  return one;
}

function forget(page, id, one) {
  page.drawing.remove(one);
  one.end();
  page.cards.delete(id);
}

function shownSection(page, { title, explained, charts, unjudged }) {
  const link = explained && h("a", { class: "explained", href: explained.address(page.id, page.series.step[0]) }, `Explained: ${explained.what}`);
  return h("section", {}, h("div", { class: "row between" }, h("h2", {}, title), link),
    unjudged ? h("p", { class: "card unjudged" }, UNJUDGED) : null,
    h("div", { class: "grid" }, charts.map(({ id }) => page.cards.get(id).element)));
}

/** Evaluations, summary and configuration. */
function rest(run) {
  const evaluations = h("div", {}), summary = h("div", {});
  const element = h("section", {}, h("h2", {}, "Evaluations on held-out problems"), h("div", { class: "card" }, evaluations),
    h("h2", {}, "Summary"), h("div", { class: "card" }, summary),
    h("h2", {}, "Configuration"), folded("config.yaml, complete", h("pre", { tabindex: "0" }, visible(run.config_yaml))));
  const show = (page) => {
    refresh(evaluations, [page.evaluations, noVerifier(page.series)], () => evaluationsTable(page.evaluations, noVerifier(page.series)));
    refresh(summary, page.run.summary, () => summaryTable(page.run.summary));
  };
  return { element, show };
}

/** Keeps the page up to date. Many steps may come at once: they are shown together, and no more often than people read. */
function listen(page, path, show, lost) {
  const shown = paced(show, GAP);
  const then = (change) => {
    change();
    shown.ask();
  };
  const end = follow(page.id, () => page.series.step.at(-1) ?? 0, {
    open: () => lost(false),
    error: () => lost(true),
    step: (row) => then(() => page.series.append(row)),
    evaluations: (found) => then(() => { page.evaluations = found.evaluations; }),
    status: ({ status }) => then(() => turned(page, path, status, shown.ask).catch(() => lost(true))),
  });
  return () => {
    end();
    shown.end();
  };
}

/** A run that ended has a summary and checkpoints that it did not have. */
async function turned(page, path, status, show) {
  if (page.run.status === status) return;
  page.run = { ...page.run, status };
  page.run = { ...(await get(path)), status };
  show();
}
