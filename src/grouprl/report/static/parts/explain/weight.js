// How much a group weighs in the gradient, by how often its problem is solved.
import { h, put } from "../dom.js";
import { plain } from "../numbers.js";
import { percent } from "../text.js";
import { asking } from "./ask.js";
import { linePlot, nearest } from "./plot.js";

const LINES = [["grpo", "GRPO", 1], ["dr_grpo", "Dr.GRPO", 2], ["rloo", "RLOO", 3]];
const BEGINS = 0.5; // of the handle
const SHOWN = 4; // digits of a weight

/** The plot with its sentences; `show(size)` asks for groups of that size. */
export function weightPlot() {
  const title = h("h2", { id: "weight" }, "Weight of a group, by pass rate");
  const read = h("p", { class: "read" });
  const failed = h("p", { class: "error" });
  let answer = null;
  const plot = linePlot({
    label: "Weight of a group against the pass rate of its problem",
    x: "pass rate of the problem",
    y: "weight: sum of |A| over the group",
    handle: { name: "Pass rate", said: (index) => (answer ? spoken(answer, index) : "") },
    onmove: (index) => put(read, readout(answer, index)),
  });
  const asked = asking("pass_rate", (found) => {
    const first = answer === null;
    answer = found;
    put(failed);
    put(title, `Weight of a group of ${found.group_size}, by pass rate`);
    const series = LINES.map(([name, title, look]) => ({ name: title, look, values: found.algorithms[name].weight }));
    plot.show({ grid: found.pass_rate, series });
    if (first) plot.move(nearest(found.pass_rate, BEGINS));
    put(read, readout(found, plot.index()));
  }, (error) => put(failed, error.message));
  let size = null;
  return {
    element: h("section", { "aria-labelledby": "weight" }, title,
      h("p", { class: "lead" }, "How hard a group pushes on average: the sum of its advantages, signs aside, where rewards are 1 " +
        "or 0 and each completion is right with this chance. At both ends nearly all groups are unanimous and weigh nothing. Without " +
        "the division the weight follows the variance of the rewards; with it, easy and hard problems are lifted."),
      h("div", { class: "card" }, failed, plot.element, read)),
    show(next) {
      if (next === size) return;
      size = next;
      const parameters = { group_size: size, algorithms: LINES.map(([name]) => name).join(",") };
      if (answer) asked.soon(parameters);
      else asked.now(parameters);
    },
    end: asked.end,
  };
}

function spoken({ pass_rate: rates, algorithms }, index) {
  const each = LINES.map(([name, title]) => `${title} ${plain(algorithms[name].weight[index], SHOWN)}`);
  return `pass rate ${percent(rates[index])}: ${each.join(", ")}`;
}

function readout({ pass_rate: rates, signal, algorithms }, index) {
  const each = LINES.flatMap(([name, title], place) =>
    [place ? ", " : "", `${title} `, h("b", {}, plain(algorithms[name].weight[index], SHOWN))]);
  return ["At a pass rate of ", h("b", {}, percent(rates[index])),
    `, ${percent(signal[index])} of the groups have a signal. Weight: `, each, "."];
}
