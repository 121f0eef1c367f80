// A chart with its title, one sentence about it and, where values jump, a switch to a logarithmic axis.
import { Chart } from "./chart.js";
import { formula, sentences } from "./definitions.js";
import { h } from "./dom.js";
import { heldOut, smoothed } from "./series.js";
import { visible } from "./text.js";
import { AXES } from "./units.js";

/** The card of a chart with these options; `data()` gives what it shows, `definition` what is said of it. */
export function titled(options, definition, data) {
  const chart = new Chart(options);
  const draw = () => chart.draw(data());
  const title = h("h3", {}, visible(options.label), unit(options.unit));
  const log = options.log === undefined ? null : logarithm(chart, options.label, draw);
  const element = h("section", { class: "card chart-card", "aria-label": visible(options.label) },
    h("div", { class: "chart-head" }, title, log), chart.element, definition === null ? null : words(definition));
  return { element, draw, chart, end: () => chart.end() };
}

function unit(name) {
  return name && name !== "share" ? h("span", { class: "unit" }, name === "s" ? "seconds" : name) : null;
}

function logarithm(chart, title, draw) {
  const button = h("button", {
    type: "button", class: "small", "aria-pressed": String(chart.log), "aria-label": `Logarithmic axis: ${visible(title)}`,
    title: "Values of 0 and below have no place there",
  }, "Log");
  button.addEventListener("click", () => {
    chart.log = !chart.log;
    button.setAttribute("aria-pressed", String(chart.log));
    draw();
  });
  return button;
}

function words(definition) {
  if (!definition) return h("p", { class: "note" }, "A metric of this run's own: docs/run_directory.md does not define it.");
  return [h("p", { class: "note" }, sentences(definition)), definition.more ? further(definition.more) : null];
}

/** The sentences and formulas that say what is behind a metric, folded. */
function further({ title, text, formulas = [], letters = {} }) {
  const known = Object.entries(letters).map(([letter, meaning]) => [h("dt", {}, formula(letter)), h("dd", {}, formula(meaning))]);
  return h("details", { class: "note further" }, h("summary", {}, title),
    formulas.map((one) => h("p", { class: "formula" }, formula(one))), known.length ? h("dl", { class: "letters" }, known) : null,
    text.map((sentence) => h("p", {}, formula(sentence))));
}

// A chart of a run: what the plan says, drawn from the run's figures.

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
    view: page.view, log: spec.log,
    floor: spec.zero || spec.whole ? 0 : undefined, ceiling: spec.whole ? 1 : undefined,
    until: () => page.series[page.view.axis].at(-1),
    where: (at, x) => place(steps[at], x, page.view.axis),
    // Step 0 is the policy before training: it has no groups.
    pick: (at) => steps[at] > 0 && page.open(steps[at]),
    zoomed: page.zoomed,
  }, spec.definition, data);
}

function byStep(spec, { series, view }) {
  const columns = spec.columns(series);
  const smooth = view.smooth && !spec.stacked ? columns.map(smoothed) : undefined;
  return { x: series[view.axis], steps: series.step, columns, smooth };
}

function place(step, x, axis) {
  return axis === "step" ? AXES.step.of(x) : `step ${step}, ${AXES[axis].of(x)}`;
}
