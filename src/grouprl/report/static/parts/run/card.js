// A chart of a run: what the plan says, drawn from the run's figures.
import { heldOut, smoothed } from "../series.js";
import { titled } from "../titled.js";
import { AXES } from "../units.js";

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
