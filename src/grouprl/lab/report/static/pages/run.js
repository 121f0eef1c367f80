// One run while it runs: its charts, evaluations and configuration, kept up to date by the lab's events.
import { kept } from "../parts/address.js";
import { file, follow, get, linked, ofRun } from "../parts/api.js";
import { h, put, refresh, write } from "../parts/dom.js";
import { course, reached } from "../parts/run/course.js";
import { head } from "../parts/run/head.js";
import { measuresOf, noVerifier, plan, UNJUDGED } from "../parts/run/plan.js";
import { beforeAndAfter, evaluationsTable, examplePairs, invalidReasons, klJumps, pairs, summaryTable, timeTable, warningsTable } from "../parts/run/results.js";
import { byReward, Series } from "../parts/series.js";
import { later, shown, visible } from "../parts/text.js";
import { card, definitions, warned } from "../parts/titled.js";
import { howTo, paced, toolbar } from "../parts/view.js";

const GAP = 1000; // milliseconds between two drawings of a run in progress
const FLAT = "Flat charts", FEWEST = 5; // steps after which a chart may be called flat

/** Shows the run `parameters.run`; gives what ends it. */
export async function render(root, { run: id }, query) {
  const path = ofRun(id);
  const [run, find, sections, { runs }] = await Promise.all([get(path), definitions(), file("charts.json"), get("runs")]);
  const page = {
    id, run, find, sections, query, series: new Series(), evaluations: run.evaluations,
    pinned: new Set(kept("pinned").split("\n").filter(Boolean)), folded: new Set([FLAT]), sought: "", unfound: h("p", { class: "note", role: "status" }),
    open: (step) => { location.hash = `#/${ofRun(id, "groups", step)}`; },
  };
  if (run.metrics.length) page.series.fill(await get(`${path}/series`));
  page.pin = (chart, on) => {
    page.pinned[on ? "add" : "delete"](chart);
    kept("pinned", [...page.pinned].join("\n"));
    arrange(page, charts);
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
  const changes = part(null, reached, () => later(get(path), course));
  const jumps = part(null, ({ run, series }) => [run.status, Math.floor(series.length / 10)], () => later(get(`${path}/jumps`), (found) => klJumps(id, found.jumps)));
  put(root, top.element, warned.element, changes.element, bar, howTo(true), page.unfound, charts, jumps.element, found.element, tables.element);
  const show = () => {
    arrange(page, charts);
    for (const one of [top, warned, jumps, changes, found, tables]) one.show(page);
    page.drawing.change();
  };
  show();
  return listen(page, path, show, top.lost);
}

/** Puts the charts that the run has now in their places; those that stay are not made anew. */
function arrange(page, element) {
  const unjudged = noVerifier(page.series);
  const measures = measuresOf(page.evaluations, byReward(page.run, page.evaluations));
  const sections = placed(page, plan(page.sections, page.series.names(), measures, page.find, unjudged));
  const wanted = new Map(sections.flatMap(({ charts }) => charts).map((spec) => [spec.id, spec]));
  const key = [unjudged, ...page.pinned, "", ...wanted.keys(), sections.at(-1)?.line].join("\n");
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  const held = document.activeElement, ids = [...wanted.keys()], made = page.drawing.arrange(ids, (id) => card(wanted.get(id), page));
  const elements = new Map(ids.map((id, place) => [id, made[place]]));
  const none = h("p", { class: "note" }, "No step yet: charts appear after the first step.");
  put(element, sections.length ? sections.map((section) => shownSection(page, section, elements)) : none);
  held.focus({ preventScroll: true }); // which what was moved has lost
  seek(page, element);
}

/** The sections with what is pinned in one before all others, and in one after them what never moved. */
function placed({ pinned, series, run }, sections) {
  const same = (values, gaps) => values.every((value) => value === first(values) || (value === null && (gaps || first(values) === 0)));
  const isFlat = (spec) => !spec.stays && !spec.stacked && !warned(run.warnings, spec).length && series.length >= FEWEST
    && spec.columns?.(series).every((values) => same(values, spec.gaps));
  const place = (spec) => (pinned.has(spec.id) ? "Pinned" : isFlat(spec) ? FLAT : "");
  const of = (title) => sections.map((one) => ({ ...one, charts: one.charts.filter((spec) => place(spec) === title) }));
  const [before, after] = ["Pinned", FLAT].map((title) => ({ title, charts: of(title).flatMap(({ charts }) => charts) }));
  return [before, ...of(""), { ...after, line: inALine(after.charts, series) }].filter((one) => one.charts.length || one.unjudged);
}

const first = (values) => values.find((value) => value !== null);

/** What never happened, and what was always the same. */
function inALine(charts, series) {
  const name = ({ title }) => title.replace(/^[A-Z](?=[a-z])/, (letter) => letter.toLowerCase());
  const values = ({ columns }) => [...new Set(columns(series).map(first))];
  const list = (words, found, said) => (found.length ? `${words}: ${found.map(said).join(", ")}. ` : "");
  return list("Never", charts.filter((one) => !values(one).some(Boolean)), name) + list("Always the same", charts.filter((one) => values(one).some(Boolean)),
    (one) => `${name(one)} ${values(one).map((value) => shown(value, one.unit)).join(" and ")}`);
}

/** Hides the charts whose titles do not have what is looked for, and sections without any other; opens those with one. */
function seek(page, element) {
  for (const section of element.querySelectorAll(":scope > details")) {
    const cards = [...section.querySelectorAll(".chart-card")];
    for (const one of cards) one.hidden = !one.getAttribute("aria-label").toLowerCase().includes(page.sought);
    section.hidden = cards.length > 0 && cards.every((one) => one.hidden);
    section.open ||= page.sought && !section.hidden;
  }
  write(page.unfound, [...element.querySelectorAll(".chart-card")].every((one) => one.hidden) && page.sought ? `No chart has \u201c${visible(page.sought)}\u201d in its title.` : "");
}

function shownSection(page, { title, line, explained, charts, unjudged }, elements) {
  const address = () => explained.address.replace("{run}", encodeURIComponent(page.id));
  const link = linked && explained && h("a", { class: "explained", href: address() }, `Explained: ${explained.what}`);
  const fold = ({ target }) => page.folded[target.open ? "delete" : "add"](title);
  return h("details", { class: "folds", open: !page.folded.has(title), ontoggle: fold }, h("summary", {}, line ? visible(line) : h("h2", {}, title)), link,
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

/** Keeps the page up to date; gives what ends it. Many steps may come at once: they are shown together, and no more often than people read. */
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
    page.drawing.end();
  };
}

/** A run that ended has a summary, checkpoints and a verdict that it did not have; a broken one has no answer. */
async function turned(page, path, status, show) {
  if (page.run.status === status) return;
  page.run = { ...page.run, verdict: "", status, ...(status === "broken" ? {} : await get(path)) };
  show();
}
