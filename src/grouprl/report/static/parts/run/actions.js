// The buttons of a run: one that stops or resumes it, one that forks it.
import { h, say } from "../dom.js";
import { forkDialog, resumeDialog, stop } from "../launch.js";
import { write } from "../legend.js";
import { visible } from "../text.js";

/** The buttons; `show(run)` brings them up to date. `names` gives the names that are taken, of other runs. */
export function actions(names) {
  let run = null, asked = false;
  // One button for both, so that it keeps the focus when the run ends.
  const turn = h("button", { type: "button", class: "small", onclick: async () => {
    if (run.status !== "running") return resumeDialog(run);
    if (asked) return;
    asked = await stop(run);
    show(run);
  } });
  const ask = () => forkDialog(run, names()).catch((error) => say(error.message, "error"));
  const fork = h("button", { type: "button", class: "small", onclick: ask }, "Fork");
  const element = h("span", { class: "row actions" }, turn, fork);
  const show = (found) => {
    run = found;
    if (run.status !== "running") asked = false;
    element.hidden = run.status === "broken";
    write(turn, run.status !== "running" ? "Resume" : asked ? "Stopping" : "Stop");
    turn.setAttribute("aria-label", `${turn.textContent} ${visible(run.name)}`);
    fork.setAttribute("aria-label", `Fork ${visible(run.name)}`);
  };
  return { element, show };
}
