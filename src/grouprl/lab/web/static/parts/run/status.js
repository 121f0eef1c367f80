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

/** A bar of the steps made that `show(step, steps)` moves, with the numbers beside it. */
export function progress() {
  const bar = h("progress", { max: "1", value: 0, "aria-label": "Steps" });
  const text = h("span", {});
  const show = (step, steps) => {
    bar.max = Math.max(1, steps ?? step ?? 1);
    bar.value = step ?? 0;
    write(text, steps ? `${(step ?? 0).toLocaleString("en")} / ${steps.toLocaleString("en")}` : String(step ?? 0));
  };
  return { element: h("span", { class: "step-bar" }, bar, text), show };
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
