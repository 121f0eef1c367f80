// A chart with its title, what its metric is and, where values jump, a switch to a logarithmic axis.
import { file } from "./api.js";
import { Chart } from "./chart.js";
import { h, toggle } from "./dom.js";
import { save } from "./picture.js";
import { heldOut, smoothed } from "./series.js";
import { AXES, visible } from "./text.js";

/** The card of a chart with these options; `data()` gives what it shows, `definition` what is said of it. */
export function titled(options, definition, data) {
  const chart = new Chart(options);
  const draw = () => chart.draw(data());
  const unit = options.unit === "s" ? "seconds" : options.unit;
  const title = h("h3", {}, visible(options.label), unit && !["share", "loss"].includes(unit) ? h("span", { class: "unit" }, unit) : null);
  const log = options.log === undefined ? null : logarithm(chart, options.label, draw);
  const element = h("section", { class: "card chart-card", "aria-label": visible(options.label) },
    h("div", { class: "chart-head" }, title,
      h("div", { class: "row" }, options.pin ? pin(options) : null, log, menu(chart, draw))), chart.element, definition === null ? null : words(definition));
  return { element, draw, chart, end: () => chart.end() };
}

/** What a chart can be saved as, folded. */
function menu(chart, draw) {
  const button = (kind) => h("button", { type: "button", class: "small", onclick: () => {
    if (!chart.drawn.plot) draw();
    save(kind, chart.drawn);
    box.open = false;
  } }, kind);
  const box = h("details", { class: "menu" }, h("summary", { "aria-label": `Save ${visible(chart.drawn.label)}`, title: "Save" }, "\u2913"),
    h("div", { class: "card" }, ["CSV", "PNG", "SVG"].map(button)));
  return box;
}

function pin({ pin: { on, change }, label }) {
  return toggle(on, change, "Pin", { class: "small", "aria-label": `Pin: ${visible(label)}`, title: "Shown at the top of every run's page" });
}

function logarithm(chart, title, draw) {
  const named = { "aria-label": `Log axis: ${visible(title)}`, title: "A logarithmic axis: values of 0 and below are not drawn" };
  return toggle(chart.log, (on) => {
    chart.log = on;
    draw();
  }, "Log", { class: "small", ...named });
}

function words(definition) {
  if (!definition) return h("p", { class: "note" }, "A custom metric: GroupRL does not define it.");
  const { is, worry, more } = definition;
  return h("details", { class: "note about" }, h("summary", {}, `${is[0].toUpperCase()}${is.slice(1)}.`), h("p", {}, `Worry ${worry}.`),
    more ? further(more) : null);
}

/** The sentences and formulas that say what is behind a metric, folded. */
function further({ title, text, formulas = [], letters = {} }) {
  const known = Object.entries(letters).map(([letter, meaning]) => [h("dt", {}, formula(letter)), h("dd", {}, formula(meaning))]);
  return h("details", { class: "note further" }, h("summary", {}, title),
    formulas.map((one) => h("p", { class: "formula" }, formula(one))), known.length ? h("dl", { class: "letters" }, known) : null,
    text.map((sentence) => h("p", {}, formula(sentence))));
}

// A chart of a run: what the plan says, drawn from the run's metrics.

/**
 * The card of one chart of the plan.
 *
 * `page` is what the charts of a run share: {series, evaluations, view, open(step), zoomed(range)}.
 */
export function card(spec, page) {
  let steps = [];
  const data = () => {
    const found = spec.measures ? heldOut(page.series, page.evaluations, spec.measures, page.view.axis) : byStep(spec, page);
    steps = found.steps;
    return found;
  };
  return titled({
    label: spec.title, lines: spec.lines, unit: spec.unit, stacked: spec.stacked, bands: spec.bands,
    view: page.view, log: spec.log, pin: page.pinned && { on: page.pinned.has(spec.id), change: (on) => page.pin(spec.id, on) },
    floor: spec.zero || spec.whole ? 0 : undefined, ceiling: spec.whole ? 1 : undefined,
    until: () => page.series[page.view.axis].at(-1),
    where: (at, x) => (page.view.axis === "step" ? "" : `step ${steps[at]}, `) + AXES[page.view.axis].of(x),
    // Step 0 is the policy before training: it has no groups.
    marks: () => warned(page.run?.warnings, spec).map(({ step }) => page.series.place(step, page.view.axis)),
    pick: (at) => steps[at] > 0 && page.open(steps[at]),
    zoomed: page.zoomed,
  }, spec.definition, data);
}

export const warned = (warnings, { id }) => (warnings ?? []).filter(({ metric }) => id.split(" ").includes(metric));

function byStep(spec, { series, view }) {
  const columns = spec.columns(series);
  const smooth = view.smooth && !spec.stacked ? columns.map(smoothed) : undefined;
  return { x: series[view.axis], steps: series.step, columns, smooth };
}

// What each metric is, and what to worry about, as record/metrics.py says it.

let known = null;

/** A function from a metric's name to its definition {label, unit, is, worry, more?}; undefined for one that has none. */
export async function definitions() {
  if (!known) {
    const [found, sections] = await Promise.all([file("metrics.json"), file("sections.json")]);
    known = new Map(Object.entries(found).map(([name, one]) => [name, { ...one, is: withoutMarks(one.meaning), more: sections[one.section] }]));
  }
  return (name) => known.get(name) ?? known.get(pattern(name));
}

/** Markdown without its marks: a link is its text, one in parentheses nothing. */
const withoutMarks = (text) => text.replace(/ \(\[[^\]]*\]\([^)]*\)\)/g, "").replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replaceAll("`", "");

function pattern(name) {
  if (/^rewards\/.+\/mean$/.test(name)) return "rewards/NAME/mean";
  if (/^episodes\/(ended|faults)\/./.test(name)) return name.replace(/[^/]+$/, "NAME");
  if (/^pass_at_\d+$/.test(name)) return "pass_at_8";
  return name.endsWith("_share") ? "NAME_share" : undefined;
}

// Formulas on a line: `_` sets the letter or the {letters} after it lower, `^` higher.

// After one letter or a bracket: the _ within a word, such as clip_low, is a sign of that word.
const MOVED = /(?<=(?<![\p{L}\d_])\p{L}|[)\]}])([_^](?:\{[^}]*\}|[\p{L}\d]))/u;
const TAG = { "_": "sub", "^": "sup" };

/** The text as nodes, with what is lower or higher in its place. */
function formula(text) {
  const inside = (part) => formula(part.replace(/^\{(.*)\}$/, "$1"));
  return text.split(MOVED).map((part, place) => (place % 2 ? h(TAG[part[0]], {}, inside(part.slice(1))) : part));
}
