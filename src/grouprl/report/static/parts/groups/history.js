// One problem through training: each of its groups, and how reward and correctness went.
import { address } from "../address.js";
import { get, ofRun } from "../api.js";
import { h, put } from "../dom.js";
import { look } from "../legend.js";
import { number, percent, written } from "../text.js";
import { titled } from "../titled.js";
import { correctMark } from "./marks.js";

const LIMIT = 50; // visits asked for at once
const CHARTS = [["Mean reward", "mean", ""], ["Share correct", "correct", "share"]];

/** {title, children} of a problem's visits. */
export async function historyView(run, problem) {
  const visits = [];
  const drawn = CHARTS.map((kind) => course(kind, visits));
  const charts = h("div", { class: "charts" }, drawn.map(({ element }) => element)), ends = h("div", { class: "ends" }), list = h("ol", { class: "visits" });
  const further = h("button", { type: "button", onclick: () => look(true) }, "Earlier visits");
  let next = null, answer = null;

  async function look(byHand) {
    answer = await get(ofRun(run, "history"), { problem, before: next, limit: LIMIT });
    next = answer.next;
    visits.unshift(...answer.visits.toReversed());
    const fresh = answer.visits.map((visit) => visitItem(run, visit));
    list.append(...fresh);
    drawn.forEach((one) => one.draw());
    if (visits.length > 1) put(ends, visitCard(run, visits[0], "Then"), visitCard(run, visits.at(-1), "Now"));
    further.hidden = next === null;
    if (byHand) fresh[0]?.querySelector("a").focus();
  }

  await look(false);
  const title = "A problem through training";
  if (!answer.total) return { title, children: [nothing(run, problem)] };
  return {
    title,
    children: [
      h("section", { class: "card" }, h("p", { class: "note" }, written(problem)),
        answer.prompt === null ? null : h("p", { class: "said" }, written(answer.prompt))),
      h("p", {}, `Sampled ${answer.total === 1 ? "once" : `${number(answer.total)} times`} in this run.`),
      visits.length > 1 ? [charts, ends] : h("p", { class: "note" }, "A problem that is sampled again shows here how its completions change."),
      h("h2", {}, "Every visit, the newest first"), list, further,
    ],
  };
}

/** The card of one number over the steps; the list below has every number as text. */
function course([label, name, unit], visits) {
  const whole = unit === "share" ? { floor: 0, ceiling: 1 } : {};
  const view = { axis: "step", smooth: false, zoom: null, sync: "history" };
  return titled({ label, unit, lines: [{ label, look: look(0) }], view, ...whole, zoomed: () => {} }, null, () => {
    const points = visits.filter((visit) => visit[name] !== null);
    return { x: points.map(({ step }) => step), columns: [points.map((visit) => visit[name])] };
  });
}

function nothing(run, problem) {
  return h("section", { class: "card" }, h("p", { class: "note" }, written(problem)),
    h("p", {}, "This run has sampled no problem of this name. ", h("a", { href: address(run) }, "All groups of the run"), " name theirs."));
}

const visitItem = (run, visit) => h("li", {}, visitCard(run, visit));

function visitCard(run, visit, title) {
  const place = { step: visit.step, group: visit.group_index };
  return h("section", { class: "card" }, title ? h("h2", {}, title) : null,
    h("div", { class: "row" }, h("a", { href: address(run, place) }, `Step ${visit.step}, group ${visit.group_index}`),
      h("span", {}, `mean reward ${number(visit.mean)}`), h("span", {}, `correct ${percent(visit.correct)}`)),
    h("ul", { class: "short" }, visit.completions.map((completion) => h("li", {},
      h("a", { href: address(run, place, { c: completion.index }), "aria-label": `Completion ${completion.index}` }, completion.index),
      correctMark(completion.correct),
      h("span", { class: "note" }, completion.invalid_reason === null ? `reward ${number(completion.reward)}` : "invalid reward"),
      completion.text === "" ? h("span", { class: "note" }, "(no text)") : written(completion.text, { class: "brief" })))));
}
