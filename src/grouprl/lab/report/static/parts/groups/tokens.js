// A completion as tokens: colored by a choice of numbers, with all numbers of the one that is looked at.
import { note, whole } from "../address.js";
import { get, ofRun } from "../api.js";
import { h, put, refresh } from "../dom.js";
import { counted, named, number, percent, signed, visible } from "../text.js";
import { conversation } from "./episode.js";
import { advantageSteps, FULL, scaleLegend, stepsUpTo, tint, tinted } from "./marks.js";

const MOST = 2000; // tokens shown at once
const LONGEST = 400; // characters of a branch
const TONES = ["plus", "minus", "zero", "amount", "same"];

/** The element that shows the tokens of a completion; `given` are the choices of the address: view, t (token). */
export async function tokenView(run, { step, group, completion }, given) {
  const found = await get(ofRun(run, "completions", step, group, completion));
  if (!found.tokens.length) return h("p", { class: "note" }, "This completion has no tokens.");
  const state = { run, found, shown: 0, at: Math.min(whole(given.t) ?? 0, found.tokens.length - 1), spans: [] };
  const { element, boxOf } = tokenBoxes(found, `completion ${completion}`);
  state.boxOf = boxOf;
  state.box = h("div", { onkeydown: (event) => pressed(state, event), onfocusin: (event) => look(state, event.target, true),
    onmouseover: (event) => look(state, event.target, false) }, element);
  state.more = h("button", { type: "button", onclick: () => { extend(state, state.shown + MOST); } });
  state.panel = tokenPanel(found);
  state.legend = h("div", { class: "row legend", role: "status" });
  state.sentence = h("p", { class: "note" });
  state.buttons = viewButtons(state);
  paint(state, VIEWS[given.view] && found[VIEWS[given.view].of] ? given.view : "advantage");
  extend(state, Math.max(MOST, state.at + 1));
  select(state, state.at);
  return h("div", { class: "tokenview" },
    h("div", { class: "row", role: "group", "aria-label": "Color tokens by" }, state.buttons),
    state.sentence, state.legend,
    h("div", { class: "tokenrows" }, h("div", {}, state.box, state.more), state.panel.element),
    h("p", { class: "note" }, legendOfSigns(found)));
}

/** The boxes of the tokens, one for each turn of an episode: {element, boxOf(place)}. */
function tokenBoxes({ episode }, of) {
  const listbox = (label) => h("div", { class: "tokens text", role: "listbox", "aria-orientation": "horizontal", "aria-label": label });
  if (episode === null) {
    const box = listbox(`Tokens of ${of}`);
    return { element: box, boxOf: () => box };
  }
  const boxes = episode.turns.map((_, place) => listbox(`Tokens of turn ${place + 1} of ${of}`));
  const element = conversation(episode, (_, place) => boxes[place]);
  return { element, boxOf: (place) => boxes[episode.turns.findIndex(({ end }) => place <= end)] };
}

function viewButtons(state) {
  return Object.entries(VIEWS).map(([name, view]) => {
    const why = typeof view.missing === "function" ? view.missing(state) : view.missing;
    const missing = state.found[view.of] ? null : `Not recorded: ${why}.`;
    return h("button", { type: "button", "data-view": name, "aria-disabled": missing ? "true" : null, title: missing ?? view.sentence,
      onclick: () => {
        if (missing) return put(state.sentence, `${view.label}. ${missing}`);
        paint(state, name);
        note({ view: name });
      } }, view.label);
  });
}

/** Colors the tokens by a view, whose scale is {tint(place), legend}. */
function paint(state, name) {
  const { label, sentence, scale, of } = VIEWS[name];
  state.scale = scale(state.found[of], state.found);
  state.spans.forEach((span, place) => color(span, state.scale.tint(place)));
  for (const button of state.buttons) button.setAttribute("aria-pressed", String(button.dataset.view === name));
  put(state.sentence, `${sentence} ${ofSequence(name, state.found)}`);
  put(state.legend, h("span", { class: "note" }, label), scaleLegend(state.scale.legend));
}

function ofSequence(name, { objective, sequence_ratio: ratio }) {
  if (!["ratio", "clipped"].includes(name) || objective.ratio !== "sequence") return "";
  return `This run clips the ratio of the whole completion, ${number(ratio, 5)}, not the ratio of each token.`;
}

function color(span, look) {
  span.classList.remove(...TONES);
  tinted(span, look);
}

function extend(state, to) {
  const { tokens } = state.found, end = Math.min(tokens.length, to);
  for (let place = state.shown; place < end; place++) {
    const span = h("span", { class: "token tint", role: "option", tabindex: "-1", "data-place": place, "aria-selected": "false" },
      pieces(tokens[place]));
    if (tokens[place].half) span.classList.add("half");
    color(span, state.scale.tint(place));
    state.spans.push(span);
    state.boxOf(place).append(span);
  }
  for (const turn of state.box.querySelectorAll(".episode > ol > li")) turn.hidden = !turn.querySelector("[data-place]");
  state.shown = end;
  state.more.hidden = end === tokens.length;
  state.more.textContent = `Show more of the ${counted(tokens.length, "token")} (${number(end)} shown)`;
}

const SIGNS = { " ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5" };

/** What a token says: spaces and line ends as signs, and everything else that cannot be seen. */
function pieces({ id, text }) {
  const sign = (shown) => h("span", { class: "sign" }, shown);
  if (!text) return sign(text === null ? `#${id}` : "\u2205");
  return text.split(/([ \n\t])/).filter((part) => part !== "").map((part) =>
    (SIGNS[part] ? [sign(SIGNS[part]), part === "\n" ? part : null] : visible(part)));
}

function legendOfSigns({ tokenizer, tokens }) {
  const from = tokenizer === null ? "This run's tokenizer was not found: each token is shown by its id, such as #5. "
    : `Token texts from the tokenizer of ${visible(tokenizer)}. `;
  const half = tokens.some((token) => token.half) ? " Dotted underline: part of a character, as bytes." : "";
  return `${from}\u00b7 space, \u23ce end of a line, \u21e5 tab.${half} Arrow keys move from token to token.`;
}

function look(state, target, chosen) {
  const span = target.closest?.("[data-place]");
  if (!span) return;
  const place = Number(span.dataset.place);
  state.panel.show(place);
  if (!chosen) return;
  select(state, place);
  note({ t: place });
}

function select(state, place) {
  for (const [old, value] of [[state.at, "false"], [place, "true"]]) {
    const span = state.spans[old];
    span.tabIndex = value === "true" ? 0 : -1;
    span.setAttribute("aria-selected", value);
  }
  state.at = place;
  state.panel.show(place);
}

const WAYS = {
  ArrowLeft: ({ at }) => at - 1,
  ArrowRight: ({ at }) => at + 1,
  Home: () => 0,
  End: ({ spans }) => spans.length - 1,
  ArrowUp: (state) => onLine(state, -1),
  ArrowDown: (state) => onLine(state, 1),
};

function pressed(state, event) {
  const to = WAYS[event.key]?.(state);
  if (to === undefined || !event.target.closest("[data-place]") || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  state.spans[Math.max(0, Math.min(state.spans.length - 1, to))].focus();
}

/** The token of the line above or below that stands nearest to the one in focus. */
function onLine({ spans, at }, way) {
  const box = (place) => spans[place].getClientRects()[0];
  const here = box(at);
  let best = at, gap = Infinity, line = null;
  for (let place = at + way; place >= 0 && place < spans.length; place += way) {
    const there = box(place);
    if (!there || Math.abs(there.top - here.top) < here.height / 2) continue;
    line ??= there.top;
    if (Math.abs(there.top - line) > here.height / 2) break;
    if (Math.abs(there.left - here.left) < gap) [best, gap] = [place, Math.abs(there.left - here.left)];
  }
  return best;
}

// All numbers of one token, at a place that does not move.

const CLIPPED = { low: "yes, below", high: "yes, above", dual: "yes, by the dual clip" };
const logprob = (value) => number(value, 4).replace("-", "\u2212");

// Of each line: its words, the list in the lab's answer, and how a number of it is written.
const LINES = [
  ["Advantage", "advantages", (value) => signed(value, 4)],
  ["Probability", "probabilities", percent],
  ["Ratio", "ratios", (value) => number(value, 5)],
  ["Clipped", "clipped", (value) => CLIPPED[value] ?? "no"],
  ["KL", "kl", (value) => number(value, 5)],
  ["Entropy", "entropies", (value) => number(value, 4)],
  ["Change", "changes", (value) => signed(value, 5)],
  ["Log-prob, sampler", "logprobs", logprob],
  ["Log-prob, plain", "plain_logprobs", logprob],
  ["Log-prob, old", "old_logprobs", logprob],
  ["Log-prob, learner", "learner_logprobs", logprob],
  ["Log-prob, reference", "reference_logprobs", logprob],
  ["Log-prob, updated", "updated_logprobs", logprob],
];

/** {element, show(place)} for a completion as the lab gives it. */
function tokenPanel(found) {
  const element = h("aside", { class: "tokenpanel", tabindex: "0", "aria-live": "polite", "aria-label": "Numbers of the token" });
  const numbersAt = (place) => {
    const { id, text, half } = found.tokens[place];
    return [
      h("h4", {}, h("span", { class: "text" }, text === null ? `#${id}` : visible(JSON.stringify(text)))),
      h("p", { class: "note" }, `Token ${place + 1} of ${number(found.tokens.length)}, id ${id}${half ? ", part of a character" : ""}`),
      branchesOf(found, place),
      h("dl", {}, LINES.map(([words, name, written]) =>
        [h("dt", {}, words), h("dd", {}, found[name] === null ? "not recorded" : written(found[name][place]))])),
    ];
  };
  return { element, show: (place) => refresh(element, place, () => numbersAt(place)) };
}

/** What would have followed other tokens here, and what it would have earned. */
function branchesOf({ branches, effects, reward }, place) {
  const here = branches?.[place];
  return here && h("section", { class: "branches", "aria-label": "Branches" },
    h("h5", {}, `Another token: effect ${signed(effects[place])}`),
    here.map((one) => h("p", {}, h("b", {}, effectChip(one, reward)), ` ${percent(one.probability)} `,
      h("span", { class: "text" }, visible(one.text.slice(0, LONGEST)), one.text.length > LONGEST ? "\u2026" : null))));
}

function effectChip({ reward }, recorded) {
  if (reward === null || recorded === null) return "invalid";
  return tinted(h("span", { class: "tint chip", title: "effect on the reward" }, signed(reward - recorded)), tint(reward - recorded, 1));
}

// What the tokens of a completion can be colored by, and the scale of each coloring.

// `of`: the list in the lab's answer. `missing`: why a completion may not have it.
const VIEWS = {
  advantage: { label: "Advantage", of: "advantages", scale: asOnCards,
    sentence: "How much better the completion, or the rest of it after this token, was than expected." },
  probability: { label: "Probability", of: "probabilities", scale: surprise,
    sentence: "Probability of the token when it was sampled. Stronger colors mean lower probability." },
  ratio: { label: "Ratio learner / sampler", of: "ratios", scale: ratio,
    missing: "the learner did not read this completion",
    sentence: "The learner's probability over the sampler's, in the last pass over the group: 1 until the weights change." },
  clipped: { label: "Clipped", of: "clipped", scale: sides,
    missing: "the learner did not read this completion, or the run did not record clipping",
    sentence: "Tokens whose ratio left the clip range in the direction of the advantage: their gradient is 0." },
  kl: { label: "KL to the reference", of: "kl", scale: either,
    missing: "the run has no reference, or the learner did not read this completion",
    sentence: "The run's estimate of the KL from the policy to the reference at this token, in nats." },
  entropy: { label: "Entropy", of: "entropies", scale: either,
    missing: "the learner did not read this completion",
    sentence: "Entropy of the policy before this token, in nats: 0 means certainty." },
  change: { label: "Change by the update", of: "changes", scale: both,
    missing: "the run reads one group of every tenth step (1, 11, 21, \u2026) again after the update, but not this one",
    sentence: "The change of the token's probability by the update." },
  effect: { label: "Effect on the reward", of: "effects", scale: explored,
    missing: ({ run, found }) => `no branches yet, run grouprl replay runs/${named(run)} ${found.step} --branch `
      + `--problem '${visible(found.problem_id)}' --completion ${found.completion_index}`,
    sentence: "How the reward changes with another token here and the same random numbers after it: mean over its likely "
      + "alternatives. Dotted: no change. Without a line: not tried. Choose a token to read its branches." },
};

/** The scale of the completions: a color means the same there and here. */
function asOnCards(values) {
  return { tint: (place) => tint(values[place], FULL), legend: advantageSteps() };
}

/** From `full` below the middle to `full` above it. */
function around(middle, values, full, write) {
  return { tint: (place) => tint(values[place] - middle, full), legend: stepsUpTo(full, (value) => write(middle + value, 4)) };
}

/** Positions without branches have no color at all. */
function explored(values) {
  const scale = both(values.map((value) => value ?? 0));
  return { ...scale, tint: (place) => (values[place] === null ? { tone: "zero", size: 0 }
    : values[place] === 0 ? { tone: "same", size: 0 } : scale.tint(place)) };
}

function both(values) {
  return around(0, values, round(largest(values)), signed);
}

/** By a share of the full color, from 0 to 1: `shareOf(value)` of a token, `write(share)` in the legend. */
function amounts(values, shareOf, write) {
  const amount = (size) => ({ tone: size ? "amount" : "zero", size });
  return {
    tint: (place) => amount(shareOf(values[place])),
    legend: [0, 0.25, 0.5, 0.75, 1].map((share) => [write(share), amount(share)]),
  };
}

function surprise(values) {
  return amounts(values, (value) => 1 - value, (share) => percent(1 - share));
}

/** From 0 up; with both signs where an estimate falls below. */
function either(values) {
  if (values.some((value) => value < 0)) return both(values);
  const full = round(largest(values));
  return amounts(values, (value) => value / full, (share) => number(share * full, 4));
}

// At least as wide as the bounds, so that rounding errors keep faint colors.
function ratio(values, { objective }) {
  const full = Math.max(objective.clip_low, objective.clip_high, round(largest(values.map((value) => value - 1))));
  return around(1, values, full, number);
}

function sides(values, { objective }) {
  const [below, neither, above] = [-1, 0, 1].map((side) => tint(side, 1));
  const looks = { low: below, high: above, dual: below };
  return {
    tint: (place) => looks[values[place]] ?? neither,
    legend: [["not clipped", neither], [`below ${number(1 - objective.clip_low)}`, below],
      [`above ${number(1 + objective.clip_high)}`, above],
      ...(objective.dual_clip === null ? [] : [[`above ${number(objective.dual_clip)} (dual clip)`, below]])],
  };
}

const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

/** The next round number; 1 for 0. */
function round(value) {
  if (!value) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 1.5, 2, 3, 5, 7.5].find((step) => step * power >= value * 0.999999) ?? 10);
}
