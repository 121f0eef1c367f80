// A chart with its title, one sentence about it and, where values jump, a switch to a logarithmic axis.
import { Chart } from "./chart.js";
import { sentence } from "./definitions.js";
import { h } from "./dom.js";
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
  if (!definition) return h("p", { class: "note" }, "A metric that docs/run_directory.md does not define.");
  return h("p", { class: "note" }, `${sentence(definition)} `, h("span", { class: "source" }, definition.link));
}
