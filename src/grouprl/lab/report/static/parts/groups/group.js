// One group: its problem, how its rewards become advantages, and its completions.
import { get, linked, live, ofRun, queryOf } from "../api.js";
import { address, choices, note } from "../address.js";
import { h, put } from "../dom.js";
import { added, bracketed, column, deviationWorked, equals, meanWorked, plain } from "../numbers.js";
import { counted, named, number, said, signed, trouble, written } from "../text.js";
import { turnsOf } from "../turns.js";
import { conversation, turnText } from "./episode.js";
import { advantageMark, chip, correctMark, kindOfGroup, lengthMark, signalMark } from "./marks.js";
import { pushesBox } from "./pushes.js";
import { tokenView } from "./tokens.js";
import { tryBox } from "./try.js";

/** {title, children, shown()} of a group; `shown` is called once it is in the page. */
export async function groupView(run, place, given) {
  const [group, { total }] = await Promise.all([
    get(ofRun(run, "groups", place.step, place.group)), get(ofRun(run, "groups"), { step: place.step, limit: 1 })]);
  const cards = completionCards(run, place, group, given);
  const links = linked && h("p", { class: "row" },
    h("a", { href: `#/step${queryOf({ run, step: group.watched ? place.step : null })}` },
      `${group.watched ? "This" : "Another"} group step by step, from its prompt to the update`),
    live ? h("a", { href: address(run, {}, { problem: group.problem_id }) }, "This problem through training") : null);
  return {
    title: `Group ${place.group} of step ${place.step}`,
    children: [
      neighbors(run, place, total),
      h("div", { class: "halves" }, problemCard(group, links), statisticsCard(group)),
      h("p", { class: "note" }, "Recompute this step, or change its algorithm or reward: ",
        h("code", {}, `grouprl replay runs/${named(run)} ${place.step} algorithm=dr_grpo`)),
      live || (linked && group.watched) ? pushesBox(run, place, group.completions.length) : null,
      live ? tryBox(run, place, group.completions[0]?.text ?? "") : null,
      cards.element,
    ],
    shown: cards.open,
  };
}

function neighbors(run, { step, group }, total) {
  return h("nav", { class: "row", "aria-label": "Other groups" },
    h("a", { href: address(run, { step }, { at: `${group}.0` }) }, `All groups of step ${step}`),
    group > 0 ? h("a", { href: address(run, { step, group: group - 1 }) }, "\u2190 previous group") : null,
    group + 1 < total ? h("a", { href: address(run, { step, group: group + 1 }) }, "next group \u2192") : null);
}

function problemCard(group, links) {
  return h("section", { class: "card problem", "aria-labelledby": "problem-title" },
    h("h2", { id: "problem-title" }, "Problem"),
    h("p", { class: "note" }, written(group.problem_id)),
    turnsOf(group.messages, group.prompt), columns(group.columns), links);
}

function columns(given) {
  const entries = Object.entries(given ?? {});
  if (!entries.length) return h("p", { class: "note" }, "This problem has no columns.");
  // The answer first: it is what one looks for.
  entries.sort(([left], [right]) => (right === "answer") - (left === "answer"));
  return h("dl", { class: "columns" }, entries.map(([name, value]) => [
    h("dt", {}, name === "" ? h("span", { class: "note" }, "(no name)") : written(name)),
    h("dd", { tabindex: "0" }, said(value)),
  ]));
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

const line = (word, ...terms) => [h("dt", {}, word), h("dd", {}, terms)];

function deviationLine(given) {
  const squares = given.deviations.filter((deviation) => deviation !== null).map((deviation) => `${bracketed(deviation)}\u00b2`);
  return line("deviation", `${added(squares)} ${equals(given.sum_of_squares)}${plain(given.sum_of_squares)}; `, ...deviationWorked(given));
}

function stepLine({ batch }) {
  if (!batch) return null;
  return line("whole step", `${counted(batch.count, "reward")} with mean `, h("b", {}, plain(batch.mean)),
    " and deviation ", h("b", {}, plain(batch.deviation)));
}

function divisorLine({ divisors, deviation_of: of, ...given }) {
  const [divisor, ...others] = new Set(divisors?.filter((one) => one !== null));
  if (divisor === undefined || others.length) return null;
  if (given.fields.scale === "none") return line("divided by", "nothing: this algorithm does not divide");
  const { deviation } = of === "batch" ? given.batch : given;
  return line("divided by", of && `${plain(deviation)} + ${plain(given.fields.eps)} ${equals(divisor)}`, h("b", {}, plain(divisor)));
}

function sentences(given, kind) {
  const still = given.recorded.every((advantage) => advantage === 0);
  const why = {
    signal: null,
    invalid: `${given.count} of ${counted(given.rewards.length, "reward")} ${given.count === 1 ? "is" : "are"} valid. `
      + "At least two are needed to compare completions.",
    solved: `Every completion is correct and has the reward ${plain(given.mean)}: none is better than another.`,
    hopeless: `No completion is correct, and each has the reward ${plain(given.mean)}: none is better than another.`,
    equal: `All ${given.count} valid rewards are ${plain(given.mean)}: no completion is better than another.`,
  }[kind];
  const then = still ? "Every advantage is exactly 0: the group has no signal."
    : "But the advantages are not 0: this algorithm does not compare within the group.";
  return [
    why && `${why} ${then}`,
    given.dropped ? "The algorithm drops this group: it is not in the update." : null,
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

/** Advantages as colored numbers of one column. */
const marks = (advantages) => column(advantages, { sign: true }).map((text, place) => chip(text, advantages[place]));

function jump(index) {
  const card = document.getElementById(`completion-${index}`);
  card.scrollIntoView({ block: "start" });
  card.querySelector("button").focus({ preventScroll: true });
}

function workedOut({ rewards, baselines, divisors, advantages: all, fields, signal }, place, result) {
  const [reward, baseline, own] = [rewards[place], baselines[place], all[place]];
  if (reward === null) return ["skipped: ", result];
  if (baseline === null || (own === 0 && !signal)) return result;
  const above = `${plain(reward)} \u2212 ${bracketed(baseline)}`;
  return [fields.scale === "none" ? `${above} ` : `(${above}) / ${plain(divisors[place])} `, equals(own), result];
}

function agreement(given) {
  if (given.agree) return h("p", { class: "note" }, "\u2713 These advantages match the recorded ones.");
  return h("p", { class: "note" }, given.why);
}

// The completions, side by side or one below the other; each opens into its tokens.

/** The section; `given` are the choices of the address: layout, c (completion), view and t (token). */
function completionCards(run, place, group, given) {
  let open = null;
  const cards = group.completions.map((completion) => card(completion, (one) => toggle(one, { view: choices().view })));
  const list = h("div", { class: `cards ${given.layout === "list" ? "list" : "beside"}` },
    cards.map((one) => [one.element, one.tokens]));

  async function toggle(one, chosen) {
    if (open) mark(open, false);
    open = open === one ? null : one;
    note({ c: open && one.index, t: open && chosen.t });
    if (!open) return;
    mark(one, true);
    await fill(one, chosen);
  }

  async function fill(one, chosen) {
    put(one.tokens, h("p", { class: "note" }, "Loading."));
    try {
      const shown = await tokenView(run, { ...place, completion: one.index }, chosen);
      if (open === one) put(one.tokens, shown);
    } catch (error) {
      if (open === one) put(one.tokens, trouble(error, () => fill(one, chosen)));
    }
  }

  const chosen = cards.find((one) => String(one.index) === given.c);
  return {
    element: h("section", { "aria-labelledby": "completions-title" },
      h("div", { class: "row heading" }, h("h2", { id: "completions-title" }, counted(cards.length, "completion")),
        layoutChoice(list, given.layout)), list),
    async open() {
      if (!chosen) return;
      await toggle(chosen, given);
      chosen.element.scrollIntoView({ block: "start" });
    },
  };
}

function mark(one, open) {
  one.element.classList.toggle("open", open);
  one.button.setAttribute("aria-expanded", String(open));
  one.tokens.hidden = !open;
  put(one.tokens);
}

function card(completion, toggle) {
  const button = h("button", { type: "button", "aria-expanded": "false", onclick: () => toggle(one) }, "Tokens");
  const element = h("article", { class: `card completion${completion.invalid_reason === null ? "" : " failed"}`,
    "aria-label": `Completion ${completion.index}`, id: `completion-${completion.index}` },
  heading(completion, button), components(completion),
  h("div", { class: `written${completion.episode ? " talk" : ""}`, tabindex: "0", role: "region", "aria-label": `Text of completion ${completion.index}` },
    textOf(completion)), logged(completion.extra));
  const tokens = h("section", { class: "card opened", "aria-label": `Tokens of completion ${completion.index}`, hidden: true });
  const one = { element, button, tokens, index: completion.index };
  return one;
}

function textOf({ text, episode }) {
  if (episode) return conversation(episode, turnText);
  return text === "" ? h("span", { class: "note" }, "(no text)") : written(text);
}

function layoutChoice(list, given) {
  const buttons = [["beside", "Side by side"], ["list", "List"]].map(([name, label]) =>
    h("button", { type: "button", "aria-pressed": String((given === "list" ? "list" : "beside") === name),
      onclick: (event) => {
        list.className = `cards ${name}`;
        for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
        note({ layout: name === "list" ? name : null });
      } }, label));
  return h("div", { class: "row", role: "group", "aria-label": "Layout" }, buttons);
}

function heading(completion, button) {
  return h("header", { class: "row" },
    h("h3", {}, `Completion ${completion.index}`), advantageMark(completion.advantage), correctMark(completion.correct),
    lengthMark(completion), button);
}

/** Reward = component x weight + ...; or why there is none. */
function components(completion) {
  if (completion.invalid_reason !== null) {
    return h("p", { class: "bad" }, "Invalid reward: ", written(completion.invalid_reason));
  }
  return h("table", { class: "components" },
    h("tbody", {}, Object.entries(completion.components).map(([name, value]) => h("tr", {}, h("td", {}, written(name)),
      h("td", { class: "number" }, value === null ? "does not apply" : times(value, completion.weights[name]))))),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "reward"),
      h("td", { class: "number" }, h("b", {}, number(completion.reward))))),
    stepRewards(completion.step_rewards));
}

// A run that was recorded without its weights has none of a task's own rewards.
function times(value, weight) {
  if (weight !== null) return `${number(value)} \u00d7 ${number(weight)}`;
  return [`${number(value)} `, h("span", { class: "note" }, "\u00d7 the task's weight")];
}

// What the reward functions logged beside the completion: a model's text may be among it.
function logged(extra) {
  return extra && h("table", { class: "components" }, h("tbody", {}, Object.entries(extra).map(([name, value]) =>
    h("tr", {}, h("td", { class: "note" }, written(name)), h("td", {}, value === null ? "" : written(String(value)))))));
}

function stepRewards(pairs) {
  if (!pairs?.length) return null;
  return h("tbody", {}, pairs.map(([end, reward], place) =>
    h("tr", {}, h("td", {}, `step ${place + 1}, to token ${end}`), h("td", { class: "number" }, signed(reward)))));
}
