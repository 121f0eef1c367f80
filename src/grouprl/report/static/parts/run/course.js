// How the policy's completions change: one typical completion of each of a few steps, side by side.
import { live, ofRun } from "../api.js";
import { h } from "../dom.js";
import { correctMark } from "../groups/marks.js";
import { column } from "../numbers.js";
import { number, written } from "../text.js";

const MARKS = [1, 5, 10, 60]; // the steps that the lab chooses from: a page in progress asks again when one is made

/** What the picture depends on. */
export const reached = ({ run, series }) => [run.status, MARKS.filter((step) => step <= (series.step.at(-1) ?? 0))];

/** The picture of the lab's answer; nothing before the first step. */
export function course(run, { same, steps }) {
  if (!steps.length) return null;
  const rewards = column(steps.map(({ reward }) => reward));
  const link = ({ step, group_index: group }) =>
    h(live ? "a" : "span", { href: live && `#/${ofRun(run, "groups", step, group)}` }, `Step ${number(step)}`);
  const panel = (one, place) => h("li", { class: "card" },
    h("div", { class: "row between" }, h("h3", {}, link(one)), correctMark(one.correct)),
    same ? null : h("p", { class: "note" }, written(one.prompt)), h("p", { class: "said" }, written(one.text)),
    h("p", { class: "note" }, `reward ${rewards[place]}`));
  const which = same ? ["One problem through training: ", written(steps[0].prompt)] : "No problem came again often enough, so each step has one of its own.";
  return [h("h2", {}, `What the policy writes, step ${number(steps[0].step)} to ${number(steps.at(-1).step)}`),
    h("ol", { class: "course" }, steps.map(panel)),
    h("p", { class: "note" }, which, " Each is the completion with the median reward.")];
}
