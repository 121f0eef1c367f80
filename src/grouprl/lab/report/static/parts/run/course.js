// How the policy's completions change: one typical completion of each of a few steps, side by side.
import { live, ofRun } from "../api.js";
import { h } from "../dom.js";
import { correctMark } from "../groups/marks.js";
import { column } from "../numbers.js";
import { number, visible, written } from "../text.js";

const MARKS = [1, 5, 10, 60]; // the steps that the lab chooses from: a page in progress asks again when one is made

/** What the picture depends on. */
export const reached = ({ run, series }) => [run.status, MARKS.filter((step) => step <= (series.step.at(-1) ?? 0))];

/** The picture of the lab's answer; nothing before the first step. */
export function course(run, { same, steps }) {
  if (!steps.length) return null;
  const rewards = column(steps.map(({ reward }) => reward)), [{ prompt, answer }] = steps;
  const link = ({ step, group_index: group }) =>
    h(live ? "a" : "span", { href: live && `#/${ofRun(run, "groups", step, ...(group === null ? [] : [group]))}` }, `Step ${number(step)}`);
  const panel = (one, place) => h("li", { class: "card" },
    h("div", { class: "row between" }, h("h3", {}, link(one)), correctMark(one.correct)),
    same ? null : h("p", { class: "note" }, written(one.prompt)), h("p", { class: "said" }, written(one.text)),
    one.reward === null ? null : h("p", { class: "note" }, `reward ${rewards[place]}`));
  const whose = answer === undefined ? "Each panel shows the completion with the median reward." : "Each panel shows the greedy completion of one recorded held-out problem after that step.";
  const problem = same ? h("p", { class: "asked" }, written(prompt), answer ? [" ", h("span", { class: "note" }, "Correct answer: ", h("b", {}, visible(answer)))] : null) : null;
  return [h("h2", {}, `What the policy writes, step ${number(steps[0].step)} to ${number(steps.at(-1).step)}`),
    problem, h("ol", { class: "course" }, steps.map(panel)),
    h("p", { class: "note" }, same ? null : "These steps have no problem in common. ", whose)];
}
