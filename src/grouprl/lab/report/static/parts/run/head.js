// The top of a run's page: what it is, how far it is, how fast, and what can be done with it.
import { comparing, linked, live, ofRun } from "../api.js";
import { h, refresh, write } from "../dom.js";
import { actions } from "../launch.js";
import { byReward } from "../series.js";
import { duration, fixed, number, share, visible } from "../text.js";
import { LOST } from "../view.js";
import { noVerifier } from "./plan.js";

const PACE = 9; // steps that the speed is the mean of
const RECENT = 20; // steps whose mean time the rest of the run is expected to take
const NUMBERS = ["Tokens per second", "Time per step", "Time so far", "Time left", "Reward", "Accuracy", "Held out, before → now"];
const NONE = "no verifier";

/** The head; `show({run, series, evaluations})` brings it up to date, `lost(yes)` says that the lab does not answer. */
export function head(run, runs) {
  const status = mark(), steps = progress(), buttons = actions(() => runs.map((one) => one.name), (found) => keep(found));
  const verdict = h("p", { class: "verdict" }), kept = h("div", { class: "kept" });
  const keep = (found) => refresh(kept, [found.tags, found.note], () => keptOf(found, (note) => h("p", { class: "text" }, visible(note))));
  const connection = h("p", { class: "error", role: "status" });
  const values = NUMBERS.map(() => h("b", {}));
  const numbers = h("div", { class: "numbers card" }, NUMBERS.map((name, place) => h("div", {}, h("span", {}, name), values[place])));
  const element = h("header", { class: "run-head" },
    h("h1", {}, visible(run.name), " ", status.element),
    h("p", { class: "note" }, [run.algorithm, run.model, run.task, `seed ${run.seed ?? "not known"}`].filter(Boolean).map(visible).join(" · ")),
    verdict, origin(run, runs), kept,
    h("div", { class: "row" }, steps.element, live ? buttons.element : null,
      h("a", { href: `#/${ofRun(run.id, "groups")}` }, "Groups and completions"),
      linked ? h("a", { href: comparing([run.id]) }, "Compare") : null),
    connection, numbers);
  const show = (page) => {
    status.show(page.run.status);
    const step = page.series.step.at(-1) ?? 0;
    steps.show(step, page.run.steps, phase({ ...page.run, step, evaluations: page.evaluations }));
    buttons.show(page.run);
    keep(page.run);
    write(verdict, page.run.status === "running" ? "" : page.run.verdict); // which is from when the page was opened
    numbersOf(page).forEach((text, place) => {
      write(values[place], text ?? "");
      values[place].parentElement.hidden = text === null;
    });
  };
  const lost = (yes) => write(connection, yes ? LOST : "");
  return { element, show, lost };
}

function numbersOf({ run, series, evaluations }) {
  const own = byReward(run, evaluations), form = (row) => (own ? fixed(row?.reward, 3) : share(row?.greedy_accuracy));
  const running = run.status === "running", judged = !noVerifier(series);
  return [
    number(series.last("tokens_per_second"), 0), duration(secondsPerStep(series, PACE)),
    // A run that is over says itself how long it trained: as the list of runs has it.
    duration(running ? series.seconds.at(-1) : run.seconds), running ? timeLeft(series, run.steps) : null,
    number(series.last("reward")), judged ? share(series.last("accuracy")) : NONE,
    judged || own ? `${own ? "reward " : ""}${form(evaluations[0])} → ${form(evaluations.length > 1 ? evaluations.at(-1) : null)}` : NONE,
  ];
}

/** Where a forked run comes from; a link where one run, and no other, has that name. */
function origin({ forked, id }, runs) {
  const [comparison, own] = id.split("~");
  if (own && live) return h("p", { class: "note" }, "A run of ", h("a", { href: `#/comparison/${encodeURIComponent(comparison)}` }, visible(comparison)), ".");
  if (!forked) return null;
  const known = runs.filter((one) => one.id === forked.from || one.name === forked.from);
  const name = visible(forked.from);
  const source = known.length === 1 ? h("a", { href: `#/${ofRun(known[0].id)}` }, name) : h("b", {}, name);
  return h("p", { class: "note" }, "Forked from ", source, ` at step ${number(forked.step)}.`);
}

/** The tags of a run, and its note as `shown(note)` has it. */
export const keptOf = ({ tags = [], note = "" }, shown) => [tags.map((tag) => h("span", { class: "tag" }, visible(tag))), note && shown(note)];

// How a run is doing.

const MARKS = { running: "mark good", finished: "mark", stopped: "mark warn", failed: "mark bad", broken: "mark bad" };

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
export function roughPhase({ status, step, steps, reward_before: reward, greedy_before: before = reward }) {
  if (status !== "running") return "";
  if (!step) return typeof before === "number" ? "" : "evaluating before training";
  return steps && step >= steps ? "final evaluation" : "";
}

/** The time left if a run continues at the pace of its last steps; a dash when too few steps show a pace. */
function timeLeft(series, steps) {
  const made = series.step.at(-1);
  if (!steps || series.length < 3 || made >= steps) return duration(null);
  return `about ${duration(secondsPerStep(series, RECENT) * (steps - made))}`;
}

/** The mean over the last so many steps; null before the second. */
function secondsPerStep({ seconds }, steps) {
  const to = seconds.length - 1, from = Math.max(0, to - steps);
  return to > from ? (seconds[to] - seconds[from]) / (to - from) : null;
}
