// How the policy's completions change: those of one held-out problem after each of a few steps, side by side.
import { linked, ofRun } from "../api.js";
import { h } from "../dom.js";
import { correctMark } from "../groups/marks.js";
import { column } from "../numbers.js";
import { number, said, visible, written } from "../text.js";

const MARKS = [1, 5, 10, 60]; // the steps that a run records: a page in progress asks again when one is made
const TEXT = 500; // characters of a completion

/** What the picture depends on. */
export const reached = ({ run, series }) => [run.status, MARKS.filter((step) => step <= (series.step.at(-1) ?? 0))];

/** The picture of a run's answer; nothing with fewer than two steps. */
export function course({ id, examples, summary }) {
  const found = Object.entries(examples).filter(([when, rows]) => when.startsWith("step ") && rows.length)
    .map(([when, rows]) => ({ step: Number(when.slice(5)), rows }));
  if (examples.after?.length && summary.steps > found.at(-1)?.step) found.push({ step: summary.steps, rows: examples.after });
  if (found.length < 2) return null;
  const [{ rows: first, step }, { rows: final, step: last }] = [found[0], found.at(-1)];
  const turns = first.map((start, place) => turn(start, final[place] ?? start));
  const { problem_id: problem, prompt, answer } = first[turns.indexOf(Math.max(...turns))];
  const shown = found.flatMap(({ step, rows }) => rows.filter((row) => row.problem_id === problem).map((row) => ({ step, ...row })));
  const rewards = column(shown.map(({ reward }) => reward));
  const link = (step) => h(linked ? "a" : "span", { href: linked && `#/${ofRun(id, "groups", step)}` }, `Step ${number(step)}`);
  const panel = ({ step, correct, completion, reward }, place) => h("li", { class: "card" },
    h("div", { class: "row between" }, h("h3", {}, link(step)), correctMark(correct)),
    h("p", { class: "said" }, said(completion.slice(0, TEXT))),
    reward === null ? null : h("p", { class: "note" }, `reward ${rewards[place]}`));
  const right = answer ? [" ", h("span", { class: "note" }, "Correct answer: ", h("b", {}, visible(answer)))] : null;
  return [h("h2", {}, `What the policy writes, step ${number(step)} to ${number(last)}`),
    h("p", { class: "asked" }, written(prompt), right), h("ol", { class: "course" }, shown.map(panel)),
    h("p", { class: "note" }, "Each panel shows the greedy completion of one recorded held-out problem after that step.")];
}

/** How much a problem shows: first one that the policy has learned, then any that it completes in another way. */
function turn(start, end) {
  return 4 * (!start.correct && end.correct === true) + 2 * (end.correct === null && (end.reward ?? 0) > (start.reward ?? 0))
    + (start.completion !== end.completion);
}
