// How a run is doing, and what can be done about it.
import { h } from "../dom.js";
import { write } from "../legend.js";
import { duration } from "../text.js";

/** What a page says while it gets no answer. */
export const LOST = "The lab does not answer. This page goes on by itself when it does; "
  + "a lab that was started anew has to be opened by its new link.";

const MARKS = { running: "mark good", finished: "mark", stopped: "mark warn", broken: "mark bad" };
const RECENT = 20; // steps whose mean time the rest of the run is expected to take

/** A sign of the status that `show(status)` changes. */
export function mark() {
  const element = h("span", { class: "mark" });
  const show = (status) => {
    write(element, status);
    element.className = MARKS[status] ?? "mark";
  };
  return { element, show };
}

/** A bar of the steps made that `show(step, steps, phase)` moves, with the numbers beside it, and what is done meanwhile. */
export function progress() {
  const bar = h("progress", { max: "1", value: 0, "aria-label": "Steps" });
  const text = h("span", {}), now = h("span", { class: "note phase" });
  const show = (step, steps, phase = "") => {
    bar.max = Math.max(1, steps ?? step ?? 1);
    bar.value = step ?? 0;
    write(text, steps ? `${(step ?? 0).toLocaleString("en")} / ${steps.toLocaleString("en")}` : String(step ?? 0));
    write(now, phase);
  };
  return { element: h("span", { class: "step-bar" }, bar, text, now), show };
}

/**
 * What a running run does while it makes no step, or nothing: it evaluates before the first step, every
 * `config.evaluation.every` steps, and after the last.
 */
export function phase({ status, step, steps, config, evaluations }) {
  if (status !== "running") return "";
  const evaluated = evaluations.some((row) => row.step === step);
  if (!step) return evaluated ? "" : "evaluating before training";
  if (steps && step >= steps) return evaluated ? "saving, and writing the report" : "final evaluation";
  const every = config.evaluation?.every;
  return every && step % every === 0 && !evaluated ? "evaluating" : "";
}

/** The same by what a line of the list of runs has. */
export function roughPhase({ status, step, steps, greedy_before: before }) {
  if (status !== "running") return "";
  if (!step) return typeof before === "number" ? "" : "evaluates before the first step";
  return steps && step >= steps ? "final evaluation" : "";
}

/** The time that the rest of a run takes if its steps go on as the last ones; null when there is nothing to tell by. */
export function timeLeft(series, steps) {
  const made = series.step.at(-1);
  const from = Math.max(0, series.length - 1 - RECENT);
  if (!steps || series.length < 3 || made >= steps) return null;
  const each = (series.seconds.at(-1) - series.seconds[from]) / (series.length - 1 - from);
  return each * (steps - made);
}

export function about(seconds) {
  return seconds === null ? duration(null) : `about ${duration(seconds)}`;
}
