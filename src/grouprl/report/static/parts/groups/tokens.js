// A completion as tokens: coloured by a choice of numbers, with all numbers of the one that is looked at.
import { get } from "../api.js";
import { h, put } from "../dom.js";
import { number, visible } from "../text.js";
import { note, whole } from "./address.js";
import { tinted } from "./marks.js";
import { tokenPanel } from "./panel.js";
import { legendOf, scaleOf, VIEWS } from "./views.js";

const MOST = 2000; // tokens shown at once
const TONES = ["plus", "minus", "zero", "amount"];

/** The element that shows the tokens of a completion; `given` are the choices of the address: view, t (token). */
export async function tokenView(run, { step, group, completion }, given) {
  const found = await get(`runs/${encodeURIComponent(run)}/completions/${step}/${group}/${completion}`);
  if (!found.tokens.length) return h("p", { class: "note" }, "This completion has no tokens.");
  const state = { found, shown: 0, at: Math.min(whole(given.t) ?? 0, found.tokens.length - 1), spans: [] };
  state.box = h("div", { class: "tokens text", role: "listbox", "aria-orientation": "horizontal",
    "aria-label": `Tokens of completion ${completion}`, onkeydown: (event) => pressed(state, event),
    onfocusin: (event) => look(state, event.target, true), onmouseover: (event) => look(state, event.target, false) });
  state.more = h("button", { type: "button", onclick: () => { extend(state, state.shown + MOST); } });
  state.panel = tokenPanel(found);
  state.legend = h("div", { class: "row legend", role: "status" });
  state.sentence = h("p", { class: "note" });
  const view = VIEWS[given.view] && found[VIEWS[given.view].of] ? given.view : "advantage";
  state.scale = scaleOf(view, found);
  extend(state, Math.max(MOST, state.at + 1));
  const buttons = viewButtons(state);
  paint(state, view, buttons);
  select(state, state.at);
  return h("div", { class: "tokenview" },
    h("div", { class: "row", role: "group", "aria-label": "Colour tokens by" }, buttons),
    state.sentence, state.legend,
    h("div", { class: "tokenrows" }, h("div", {}, state.box, state.more), state.panel.element),
    h("p", { class: "note" }, legendOfSigns(found)));
}

function viewButtons(state) {
  const buttons = Object.entries(VIEWS).map(([name, view]) => {
    const missing = state.found[view.of] ? null : `Not recorded: ${view.missing}.`;
    return h("button", { type: "button", "data-view": name, "aria-disabled": missing ? "true" : null, title: missing ?? view.sentence,
      onclick: () => {
        if (missing) return put(state.sentence, `${view.label}. ${missing}`);
        paint(state, name, buttons);
        note({ view: name });
      } }, view.label);
  });
  return buttons;
}

function paint(state, name, buttons) {
  state.scale = scaleOf(name, state.found);
  state.spans.forEach((span, place) => colour(span, state.scale.tint(place)));
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.view === name));
  const { label, sentence } = VIEWS[name];
  put(state.sentence, `${sentence} ${ofSequence(name, state.found)}`);
  put(state.legend, h("span", { class: "note" }, label), legendOf(state.scale));
}

function ofSequence(name, { objective, sequence_ratio: ratio }) {
  if (!["ratio", "clipped"].includes(name) || objective.ratio !== "sequence") return "";
  return `This run clips the ratio of the whole completion, ${number(ratio, 5)}, and not that of each token.`;
}

function colour(span, look) {
  span.classList.remove(...TONES);
  tinted(span, look);
}

function extend(state, to) {
  const { tokens } = state.found, end = Math.min(tokens.length, to);
  for (let place = state.shown; place < end; place++) {
    const span = h("span", { class: "token tint", role: "option", tabindex: "-1", "data-place": place, "aria-selected": "false" },
      ...pieces(tokens[place]));
    if (tokens[place].half) span.classList.add("half");
    colour(span, state.scale.tint(place));
    state.spans.push(span);
    state.box.append(span);
  }
  state.shown = end;
  state.more.hidden = end === tokens.length;
  state.more.textContent = `Show more of the ${number(tokens.length)} tokens (${number(end)} shown)`;
}

const SIGNS = { " ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5" };

/** What a token says: spaces and line ends as signs, and everything else that cannot be seen. */
function pieces({ id, text }) {
  if (text === null) return [h("span", { class: "sign" }, `#${id}`)];
  if (text === "") return [h("span", { class: "sign" }, "\u2205")];
  return text.split(/([ \n\t])/).filter((part) => part !== "").map((part) => {
    if (!SIGNS[part]) return visible(part);
    return [h("span", { class: "sign" }, SIGNS[part]), part === "\n" ? "\n" : null];
  }).flat().filter((part) => part !== null);
}

function legendOfSigns({ tokenizer, tokens }) {
  const from = tokenizer === null ? "No tokenizer of this run was found: tokens are shown by their number, as #5. "
    : `Texts by the tokenizer of ${visible(tokenizer)}. `;
  const half = tokens.some((token) => token.half) ? " Underlined in dots: part of a character, as its bytes." : "";
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

function pressed(state, event) {
  const to = target(state, event.key);
  if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  state.spans[Math.max(0, Math.min(state.spans.length - 1, to))].focus();
}

function target(state, key) {
  const ways = {
    ArrowLeft: () => state.at - 1,
    ArrowRight: () => state.at + 1,
    Home: () => 0,
    End: () => state.spans.length - 1,
    ArrowUp: () => onLine(state, -1),
    ArrowDown: () => onLine(state, 1),
  };
  return ways[key]?.();
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
