// The top of a run's page: what it is, how far it is, how fast, and what can be done with it.
import { h, put } from "../dom.js";
import { write } from "../legend.js";
import { duration, number, visible } from "../text.js";
import { share } from "../units.js";
import { actions } from "./actions.js";
import { noVerifier } from "./plan.js";
import { LOST, about, mark, phase, progress, timeLeft } from "./status.js";

const RECENT = 10; // steps that the speed is told of

const FIGURES = ["Tokens per second", "Time per step", "Time so far", "Time left", "Reward", "Accuracy", "Held out, before → now"];
const NONE = "no verifier";

/** The head; `show({run, series, evaluations})` brings it up to date, `lost(yes)` says that the lab does not answer. */
export function head(run, runs) {
  const status = mark(), steps = progress(), buttons = actions(() => runs.map((one) => one.name));
  const connection = h("p", { class: "error", role: "status" });
  const figures = numbers(FIGURES);
  const path = encodeURIComponent(run.id);
  const element = h("header", { class: "run-head" },
    h("h1", {}, visible(run.name), " ", status.element),
    h("p", { class: "note" }, [run.algorithm, run.model, run.task, `seed ${run.seed ?? "not known"}`].filter(Boolean).map(visible).join(" · ")),
    origin(run, runs),
    h("div", { class: "row" }, steps.element, buttons.element,
      h("a", { href: `#/runs/${path}/groups` }, "Groups and completions"),
      h("a", { href: `#/compare/${encodeURIComponent(path)}` }, "Compare")),
    connection, figures.element);
  const show = (page) => {
    status.show(page.run.status);
    const step = page.series.step.at(-1) ?? 0;
    steps.show(step, page.run.steps, phase({ ...page.run, step, evaluations: page.evaluations }));
    buttons.show(page.run);
    figures.show(told(page));
  };
  const lost = (yes) => write(connection, yes ? LOST : "");
  return { element, show, lost };
}

function told({ run, series, evaluations }) {
  const made = series.length, from = Math.max(0, made - RECENT);
  const took = made - 1 > from ? (series.seconds.at(-1) - series.seconds[from]) / (made - 1 - from) : null;
  const [first, last] = [evaluations[0]?.greedy_accuracy, evaluations.at(-1)?.greedy_accuracy];
  const running = run.status === "running", judged = !noVerifier(series);
  return [
    number(series.last("tokens_per_second"), 0), duration(took),
    // A run that is over says itself how long it trained: as the list of runs has it.
    duration(running ? series.seconds.at(-1) : run.seconds), running ? about(timeLeft(series, run.steps)) : duration(null),
    number(series.last("reward")), judged ? share(series.last("accuracy")) : NONE,
    judged ? `${share(first)} → ${share(evaluations.length > 1 ? last : null)}` : NONE,
  ];
}

/** Where a forked run comes from; a link where one run, and no other, has that name. */
function origin({ forked }, runs) {
  if (!forked) return null;
  const known = runs.filter((one) => one.id === forked.from || one.name === forked.from);
  const name = visible(forked.from);
  const source = known.length === 1 ? h("a", { href: `#/runs/${encodeURIComponent(known[0].id)}` }, name) : h("b", {}, name);
  return h("p", { class: "note" }, "Forked from ", source, ` at step ${number(forked.step)}.`);
}

/** Numbers with their names below each other. */
export function numbers(names) {
  const values = names.map(() => h("b", {}));
  const element = h("div", { class: "numbers card" }, names.map((name, place) => h("div", {}, h("span", {}, name), values[place])));
  return { element, show: (texts) => texts.forEach((text, place) => write(values[place], text)) };
}

/** A part of the page that is folded. */
export function folded(title, ...children) {
  return h("details", { class: "card folded" }, h("summary", {}, title), ...children);
}

/** Replaces what an element holds, unless it would be the same. */
export function refresh(element, key, build) {
  const text = JSON.stringify(key);
  if (element.dataset.key === text) return;
  element.dataset.key = text;
  put(element, build());
}
