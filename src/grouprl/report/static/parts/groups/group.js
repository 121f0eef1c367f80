// One group: its problem, how its rewards become advantages, and its completions.
import { get, live } from "../api.js";
import { h } from "../dom.js";
import { address } from "../address.js";
import { bracketed, column, equals, plain } from "../numbers.js";
import { number, visible, written } from "../text.js";
import { added, deviationWorked, meanWorked } from "../worked.js";
import { completionCards } from "./completions.js";
import { FULL, kindOfGroup, signalMark, tint, tinted } from "./marks.js";

/** {title, children, shown()} of a group; `shown` is called once it is in the page. */
export async function groupView(run, place, given) {
  const path = `runs/${encodeURIComponent(run)}/groups`;
  const [group, { total }] = await Promise.all([
    get(`${path}/${place.step}/${place.group}`), get(path, { step: place.step, limit: 1 })]);
  const cards = completionCards(run, place, group, given);
  const walk = new URLSearchParams({ run, step: place.step, group: place.group });
  const links = live && h("p", { class: "row" },
    h("a", { href: `#/step?${walk}` }, "This group step by step, from its prompt to the update"),
    h("a", { href: address(run, {}, { problem: group.problem_id }) }, "This problem through training"));
  return {
    title: `Group ${place.group} of step ${place.step}`,
    children: [
      neighbours(run, place, total),
      h("div", { class: "halves" }, problemCard(group, links), statisticsCard(group)),
      cards.element,
    ],
    shown: cards.open,
  };
}

function neighbours(run, { step, group }, total) {
  return h("nav", { class: "row", "aria-label": "Other groups" },
    h("a", { href: address(run, { step }, { at: `${group}.0` }) }, `All groups of step ${step}`),
    group > 0 ? h("a", { href: address(run, { step, group: group - 1 }) }, "\u2190 previous group") : null,
    group + 1 < total ? h("a", { href: address(run, { step, group: group + 1 }) }, "next group \u2192") : null);
}

// The problem of a group: its messages by role, and its columns.

function problemCard(group, links) {
  return h("section", { class: "card problem", "aria-labelledby": "problem-title" },
    h("h2", { id: "problem-title" }, "Problem"),
    h("p", { class: "note" }, written(group.problem_id)),
    (group.messages ?? [{ role: "prompt", content: group.prompt }]).map(({ role, content }) => h("div", { class: "message" },
      h("span", { class: "role" }, visible(role) || "(no role)"),
      h("div", { class: "said", tabindex: "0", role: "region", "aria-label": `Message of ${visible(role)}` }, shown(content)))),
    columns(group.columns), links);
}

function columns(given) {
  const entries = Object.entries(given ?? {});
  if (!entries.length) return h("p", { class: "note" }, "It has no columns.");
  // The answer first: it is what one looks for.
  entries.sort(([left], [right]) => (right === "answer") - (left === "answer"));
  return h("dl", { class: "columns" }, entries.map(([name, value]) => [
    h("dt", {}, name === "" ? h("span", { class: "note" }, "(no name)") : written(name)),
    h("dd", { tabindex: "0" }, shown(value)),
  ]));
}

function shown(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 1);
  return text === "" ? h("span", { class: "note" }, "(empty)") : written(text);
}

// From a group's rewards to its advantages, in the numbers that the lab computed. Nothing is computed here.

/** The card of a group's statistics, as `against_record` in worked.py gives them. */
function statisticsCard(group) {
  const given = group.statistics;
  const kind = kindOfGroup(given.signal, group.completions);
  return h("section", { class: "card statistics", "aria-labelledby": "statistics-title" },
    h("h2", { id: "statistics-title" }, "Rewards to advantages ", signalMark(kind)),
    sentences(given, kind).map((sentence) => h("p", {}, sentence)),
    given.count ? h("dl", { class: "worked" }, line("mean", meanWorked(given, given.rewards)), deviationLine(given), stepLine(given), divisorLine(given)) : null,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Advantages of the completions" }, advantages(group)),
    agreement(given));
}

function line(word, ...terms) {
  return [h("dt", {}, word), h("dd", {}, terms)];
}

function deviationLine(given) {
  const squares = given.deviations.filter((deviation) => deviation !== null).map((deviation) => `${bracketed(deviation)}\u00b2`);
  return line("deviation", `${added(squares)} ${equals(given.sum_of_squares)}${plain(given.sum_of_squares)}; `, ...deviationWorked(given));
}

function stepLine({ batch }) {
  if (!batch) return null;
  return line("whole step", `${number(batch.count)} rewards with mean `, h("b", {}, plain(batch.mean)),
    " and deviation ", h("b", {}, plain(batch.deviation)));
}

function divisorLine({ divisors, deviation_of: of, ...given }) {
  const [divisor, ...others] = new Set(divisors?.filter((one) => one !== null));
  if (divisor === undefined || others.length) return null;
  if (given.fields.scale === "none") return line("divided by", "nothing: this algorithm does not scale");
  const { deviation } = of === "batch" ? given.batch : given;
  return line("divided by", of && `${plain(deviation)} + ${plain(given.fields.eps)} ${equals(divisor)}`, h("b", {}, plain(divisor)));
}

function sentences(given, kind) {
  const still = given.recorded.every((advantage) => advantage === 0);
  const why = {
    signal: null,
    invalid: `${given.count} of ${given.rewards.length} rewards ${given.count === 1 ? "is" : "are"} valid. `
      + "At least two are needed to compare completions.",
    solved: `Every completion is correct and has the reward ${plain(given.mean)}: none is better than another.`,
    hopeless: `No completion is correct, and each has the reward ${plain(given.mean)}: none is better than another.`,
    equal: `All ${given.count} valid rewards are ${plain(given.mean)}: no completion is better than another.`,
  }[kind];
  const then = still ? "Every advantage is exactly 0: the group prefers none of them."
    : "Advantages are not 0 all the same: this algorithm compares with something else than the group.";
  return [
    why && `${why} ${then}`,
    given.dropped ? "The algorithm drops such a group: it takes no part in the update." : null,
    given.advantages && !why && h("span", { class: "formula" }, `advantage = ${given.formula}`),
  ].filter(Boolean);
}

function advantages(group) {
  const given = group.statistics;
  const differ = given.agree === false;
  const shown = {
    rewards: column(given.rewards), deviations: column(given.deviations, { sign: true }), recorded: marks(given.recorded),
    advantages: given.advantages && marks(given.advantages.map((advantage) => advantage ?? 0)),
  };
  const words = ["no.", "reward", "from the mean", "advantage", differ ? "recorded" : null];
  return h("table", { class: given.advantages ? "by-hand" : null },
    h("thead", {}, h("tr", {}, words.filter(Boolean).map((word, place) =>
      h("th", { scope: "col", class: place ? "number" : null }, word)))),
    h("tbody", {}, group.completions.map((completion, place) => h("tr", {},
      h("th", { scope: "row" }, h("button", { type: "button", class: "link", onclick: () => jump(completion.index),
        "aria-label": `Go to completion ${completion.index}` }, completion.index)),
      h("td", { class: "number" }, given.rewards[place] === null ? "invalid" : shown.rewards[place]),
      h("td", { class: "number" }, shown.deviations[place]),
      h("td", { class: "number" }, given.advantages ? workedOut(given, place, shown.advantages[place]) : shown.recorded[place]),
      differ ? h("td", { class: "number" }, shown.recorded[place]) : null))));
}

/** Advantages as coloured numbers of one column. */
function marks(advantages) {
  return column(advantages, { sign: true }).map((text, place) =>
    tinted(h("span", { class: "tint chip", title: "advantage" }, text), tint(advantages[place], FULL)));
}

function jump(index) {
  const card = document.getElementById(`completion-${index}`);
  card.scrollIntoView({ block: "start" });
  card.querySelector("button").focus({ preventScroll: true });
}

function workedOut({ rewards, baselines, divisors, advantages: all, fields, signal }, place, result) {
  const [reward, baseline, own] = [rewards[place], baselines[place], all[place]];
  if (reward === null) return ["left out: ", result];
  if (baseline === null || (own === 0 && !signal)) return result;
  const above = `${plain(reward)} \u2212 ${bracketed(baseline)}`;
  return [fields.scale === "none" ? `${above} ` : `(${above}) / ${plain(divisors[place])} `, equals(own), result];
}

function agreement(given) {
  if (given.agree) return h("p", { class: "note" }, "\u2713 These are the advantages that the run recorded.");
  return h("p", { class: "note" }, given.why);
}
