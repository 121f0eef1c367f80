// One run while it runs: its charts, evaluations and configuration, kept up to date by the lab's events.
import { kept } from "../parts/address.js";
import { file, follow, get, live, ofRun } from "../parts/api.js";
import { h, put, refresh, write } from "../parts/dom.js";
import { course, reached } from "../parts/run/course.js";
import { head } from "../parts/run/head.js";
import { measuresOf, noVerifier, plan, UNJUDGED } from "../parts/run/plan.js";
import { beforeAndAfter, evaluationsTable, examplePairs, invalidReasons, klJumps, pairs, summaryTable, timeTable, warningsTable } from "../parts/run/results.js";
import { byReward, Series } from "../parts/series.js";
import { later, visible } from "../parts/text.js";
import { card, definitions } from "../parts/titled.js";
import { howTo, paced, toolbar } from "../parts/view.js";

const GAP = 1000; // milliseconds between two drawings of a run in progress

/** Shows the run `parameters.run`; gives what ends it. */
export async function render(root, { run: id }, query) {
  const path = ofRun(id);
  const [run, find, sections, { runs }] = await Promise.all([get(path), definitions(), file("charts.json"), get("runs")]);
  const page = {
    id, run, find, sections, query, series: new Series(), evaluations: run.evaluations,
    pinned: new Set(kept("pinned").split("\n").filter(Boolean)), folded: new Set(), sought: "", unfound: h("p", { class: "note", role: "status" }),
    open: (step) => { location.hash = `#/${ofRun(id, "groups", step)}`; },
  };
  if (run.metrics.length) page.series.fill(await get(`${path}/series`));
  page.pin = (chart, on) => {
    page.pinned[on ? "add" : "delete"](chart);
    kept("pinned", [...page.pinned].join("\n"));
    const held = document.activeElement;
    arrange(page, charts);
    held.focus(); // which a moved button has lost
    page.drawing.change();
  };
  page.seek = (words) => {
    page.sought = words.toLowerCase();
    seek(page, charts);
    page.drawing.change();
  };
  const top = head(run, runs);
  const bar = toolbar(page, `run ${id}`, false);
  const charts = h("div", {}), tables = rest(path);
  const warned = part("Warnings", ({ run }) => run.warnings, ({ run }) => (run.warnings.length ? warningsTable(run.warnings) : null));
  const found = part("Before and after", ({ run: { summary } }) => [summary.before, summary.after], (page) => beforeAndAfter(page.run.summary));
  const changes = part(null, reached, () => later(get(`${path}/course`), (answer) => course(id, answer)));
  const jumps = part(null, ({ run, series }) => [run.status, Math.floor(series.length / 10)], () => later(get(`${path}/jumps`), (found) => klJumps(id, found.jumps)));
  put(root, top.element, warned.element, changes.element, bar, howTo(true), page.unfound, charts, jumps.element, found.element, tables.element);
  const show = () => {
    arrange(page, charts);
    for (const one of [top, warned, jumps, changes, found, tables]) one.show(page);
    page.drawing.change();
  };
  show();
  const end = listen(page, path, show, top.lost);
  return () => {
    end();
    page.drawing.end();
  };
}

/** Puts the charts that the run has now in their places; those that stay are not made anew. */
function arrange(page, element) {
  const unjudged = noVerifier(page.series);
  const sections = withPinned(plan(page.sections, page.series.names(), measuresOf(page.evaluations, byReward(page.run, page.evaluations)), page.find, unjudged), page.pinned);
  const wanted = new Map(sections.flatMap(({ charts }) => charts).map((spec) => [spec.id, spec]));
  const key = [unjudged, ...page.pinned, "", ...wanted.keys()].join("\n");
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  const ids = [...wanted.keys()], made = page.drawing.arrange(ids, (id) => card(wanted.get(id), page));
  const elements = new Map(ids.map((id, place) => [id, made[place]]));
  const none = h("p", { class: "note" }, "No step yet: charts appear after the first step.");
  put(element, sections.length ? sections.map((section) => shownSection(page, section, elements)) : none);
  seek(page, element);
}

/** The sections with what is pinned in one before all others. */
function withPinned(sections, pinned) {
  const [charts, rest] = [true, false].map((on) => sections.map((one) => ({ ...one, charts: one.charts.filter(({ id }) => pinned.has(id) === on) })));
  const first = { title: "Pinned", charts: charts.flatMap((one) => one.charts) };
  return [first, ...rest].filter((one) => one.charts.length || one.unjudged);
}

/** Hides the charts whose titles do not have what is looked for, and sections without any other. */
function seek(page, element) {
  for (const section of element.querySelectorAll(":scope > details")) {
    const cards = [...section.querySelectorAll(".chart-card")];
    for (const one of cards) one.hidden = !one.getAttribute("aria-label").toLowerCase().includes(page.sought);
    section.hidden = cards.length > 0 && cards.every((one) => one.hidden);
  }
  write(page.unfound, [...element.querySelectorAll(".chart-card")].every((one) => one.hidden) && page.sought ? `No chart has \u201c${visible(page.sought)}\u201d in its title.` : "");
}

function shownSection(page, { title, explained, charts, unjudged }, elements) {
  const address = () => explained.address.replace("{run}", encodeURIComponent(page.id)).replace("{step}", page.series.step[0]);
  const link = live && explained && h("a", { class: "explained", href: address() }, `Explained: ${explained.what}`);
  const fold = ({ target }) => page.folded[target.open ? "delete" : "add"](title);
  return h("details", { class: "folds", open: !page.folded.has(title), ontoggle: fold }, h("summary", {}, h("h2", {}, title)), link,
    unjudged ? h("p", { class: "card unjudged" }, UNJUDGED) : null,
    h("div", { class: "grid" }, charts.map(({ id }) => elements.get(id))));
}

/** What stands below the charts: tables, each under its title, without the title where there is nothing in it. */
function rest(path) {
  const judged = ({ series }) => noVerifier(series);
  const invalid = ({ series }) => series.column("frac_invalid").some((share) => share > 0);
  const parts = [
    part("The same problems, before and after", ({ run }) => run.examples, ({ run }) => examplePairs(run.examples)),
    part("Evaluations on held-out problems", (page) => [page.evaluations, judged(page)],
      (page) => evaluationsTable(page.run, page.evaluations, judged(page))),
    part("Completions with invalid rewards", (page) => [invalid(page), page.run.status],
      (page) => (invalid(page) ? invalidReasons(get(`${path}/invalid`)) : null)),
    part("Where the time of a step goes", ({ series }) => series.length, ({ series }) => timeTable(series)),
    part("Summary", ({ run }) => run.summary, ({ run }) => summaryTable(run.summary)),
    part("Files of the run", ({ run }) => run.files, ({ run }) => pairs("Files", Object.entries(run.files))),
    part("Configuration", ({ run }) => run.config_yaml,
      ({ run }) => h("details", { class: "card folded" }, h("summary", {}, "config.yaml, complete"),
        h("pre", { tabindex: "0" }, visible(run.config_yaml)))),
  ];
  return { element: h("div", {}, parts.map(({ element }) => element)), show: (page) => parts.forEach((one) => one.show(page)) };
}

/** A part of the page that is made anew when its `key(page)` changes. */
function part(title, key, build) {
  const element = h("section", {});
  const show = (page) => refresh(element, key(page), () => {
    const inside = build(page);
    return inside && [title && h("h2", {}, title), inside];
  });
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
    warnings: ({ warnings }) => then(() => { page.run = { ...page.run, warnings }; }),
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
