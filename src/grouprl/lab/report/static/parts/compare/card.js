// One metric of several runs: a chart with a line for each.
import { heldOut, smoothed } from "../series.js";
import { visible } from "../text.js";
import { titled } from "../titled.js";

import uPlot from "../../vendor/uPlot-1.6.32.esm.js";

const MEASURE = /^(greedy_accuracy|pass_at_\d+|unsolved|eval\/reward)$/;
// Of comparisons alone.
const UNSOLVED = {
  label: "Unsolved held-out problems", unit: "share",
  is: "1 minus the greedy accuracy, on an axis that separates policies that solve nearly all problems; a policy that solves all is drawn at half a problem",
  worry: "when a line stops falling while others fall",
};
// What jumps by orders of magnitude.
const JUMPS = ["kl", "grad_norm", "sampler_learner_gap", "critic_grad_norm", "value_loss", "ratio_max", "correction_max"];

/** The card of a metric; `page` has what all of them share: {runs, find, view, zoomed}. */
export function compareCard(name, page) {
  const definition = name === "unsolved" ? UNSOLVED : page.find(name);
  const banded = MEASURE.test(name) || page.runs.some(({ series }) => series.low);
  const share = definition?.unit === "share";
  const one = titled({
    label: titleOf(name, definition), unit: definition?.unit ?? "",
    lines: page.runs.map(({ id, look }) => ({ label: id.replaceAll("~", "/"), look })),
    view: page.view, bands: banded, points: MEASURE.test(name), fixed: true, log: name === "unsolved" ? true : JUMPS.includes(name) ? false : undefined,
    floor: share ? 0 : undefined, ceiling: share && MEASURE.test(name) && name !== "unsolved" ? 1 : undefined,
    zoomed: page.zoomed,
  }, definition, () => together(page, name));
  const draw = () => {
    page.runs.forEach(({ on }, line) => one.chart.toggle(line, on));
    one.draw();
  };
  return { ...one, draw };
}

/** The metrics of the evaluations among these names. */
export function isMeasure(name) {
  return MEASURE.test(name);
}

/** What a metric is called; those that share a definition by their own name. */
export function titleOf(name, definition) {
  if (/^pass_at_/.test(name)) return name.replace("pass_at_", "pass@");
  const own = /^rewards\/(.+)\/mean$/.exec(name)?.[1] ?? /^(.+)_share$/.exec(name)?.[1] ?? null;
  if (own && definition) return `${definition.label}: ${visible(own)}`;
  return definition?.label ?? visible(name);
}

/** Joins all runs over the places that any of them has; where a run has none, its line continues undrawn. */
function together({ runs, view }, name) {
  const parts = runs.map((run) => (MEASURE.test(name) ? measured(run, name, view.axis) : stepped(run, name, view)));
  const kinds = Object.keys(parts[0]).slice(1); // the first is the axis
  const [x, ...joined] = uPlot.join(parts.map((part) => Object.values(part)));
  const column = (kind) => joined.filter((_, place) => place % kinds.length === kinds.indexOf(kind));
  return { x, ...Object.fromEntries(kinds.map((kind) => [kind, column(kind)])) };
}

function measured({ series, evaluations }, name, axis) {
  const { x, columns, low, high } = heldOut(series, evaluations, [name.replace("eval/", "")], axis);
  return { x, columns: columns[0], low: low[0], high: high[0] };
}

function stepped({ series }, name, { axis, smooth }) {
  const values = series.column(name);
  if (series.low) {
    // A line of means and its band are smoothed together.
    const [columns, low, high] = [values, series.low[name], series.high[name]].map((one) => (smooth ? smoothed(one ?? values) : one ?? values));
    return { x: series[axis], columns, low, high };
  }
  return { x: series[axis], columns: values, ...(smooth ? { smooth: smoothed(values) } : {}) };
}
