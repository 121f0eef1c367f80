// A chart with its title, one sentence about it and, where values jump, a switch to a logarithmic axis.
import { Chart } from "./chart.js";
import { sentences } from "./definitions.js";
import { h } from "./dom.js";
import { formula } from "./formula.js";
import { visible } from "./text.js";

/** The card of a chart with these options; `data()` gives what it shows, `definition` what is said of it. */
export function titled(options, definition, data) {
  const chart = new Chart(options);
  const draw = () => chart.draw(data());
  const title = h("h3", {}, visible(options.label), unit(options.unit));
  const log = options.log === undefined ? null : logarithm(chart, options.label, draw);
  const element = h("section", { class: "card chart-card", "aria-label": visible(options.label) },
    h("div", { class: "chart-head" }, title, log), chart.element, words(definition));
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
