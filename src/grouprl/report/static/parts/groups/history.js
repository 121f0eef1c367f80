// One problem through training: each of its groups, and how reward and correctness went.
import { get } from "../api.js";
import { h, put, s } from "../dom.js";
import { number, percent, written } from "../text.js";
import { address } from "./address.js";
import { correctMark } from "./marks.js";

const LIMIT = 50; // visits asked for at once
const SIZE = { width: 360, height: 110, left: 44, right: 10, top: 10, bottom: 24 };

/** {title, children} of a problem's visits. */
export async function historyView(run, problem) {
  const path = `runs/${encodeURIComponent(run)}/history`;
  const visits = [];
  const charts = h("div", { class: "charts" }), ends = h("div", { class: "ends" }), list = h("ol", { class: "visits" });
  const further = h("button", { type: "button", onclick: () => look(true) }, "Earlier visits");
  let next = null, answer = null;

  async function look(byHand) {
    answer = await get(path, { problem, before: next, limit: LIMIT });
    next = answer.next;
    visits.unshift(...answer.visits.toReversed());
    const fresh = answer.visits.map((visit) => visitItem(run, visit));
    list.append(...fresh);
    put(charts, chart("Mean reward", visits, "mean", number), chart("Share correct", visits, "correct", percent, [0, 1]));
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

/** A small chart of one number over the steps; the list below has every number as text. */
function chart(label, visits, name, format, range) {
  const points = visits.filter((visit) => visit[name] !== null);
  if (!points.length) return null;
  const scale = scales(points, name, range);
  const line = points.map((visit, place) => `${place ? "L" : "M"}${scale.x(visit.step)} ${scale.y(visit[name])}`).join("");
  const first = points[0], last = points.at(-1);
  return h("figure", { class: "card" }, h("figcaption", {}, label),
    s("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img",
      "aria-label": `${label}: ${format(first[name])} at step ${first.step}, ${format(last[name])} at step ${last.step}` },
    axes(scale, format), s("path", { class: "line", d: line }),
    points.map((visit) => s("circle", { cx: scale.x(visit.step), cy: scale.y(visit[name]), r: 3.5 },
      s("title", {}, `step ${visit.step}: ${format(visit[name])}`)))));
}

function scales(points, name, range) {
  const values = points.map((visit) => visit[name]);
  let [low, high] = range ?? [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const first = points[0].step, last = points.at(-1).step, span = Math.max(1, last - first);
  const { width, height, left, right, top, bottom } = SIZE;
  return {
    low, high, first, last,
    x: (step) => left + 6 + ((step - first) / span) * (width - left - right - 12),
    y: (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom),
  };
}

function axes(scale, format) {
  const { width, height, left, right, bottom } = SIZE;
  return [
    [scale.low, scale.high].map((value) => [
      s("line", { class: "axis", x1: left, x2: width - right, y1: scale.y(value), y2: scale.y(value) }),
      s("text", { x: left - 6, y: scale.y(value) + 4, "text-anchor": "end" }, format(value)),
    ]),
    s("text", { x: left, y: height - 6 }, `step ${scale.first}`),
    scale.last === scale.first ? null : s("text", { x: width - right, y: height - 6, "text-anchor": "end" }, `step ${scale.last}`),
    s("line", { class: "axis", x1: left, x2: left, y1: scale.y(scale.high), y2: height - bottom }),
  ];
}
