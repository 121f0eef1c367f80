// Completions of a whole run: found by their text, reward and end, or by their problem.
import { address, note } from "../address.js";
import { get, ofRun } from "../api.js";
import { field, h, put, select } from "../dom.js";
import { look } from "../legend.js";
import { counted, number, percent, trouble, visible, written } from "../text.js";
import { titled } from "../titled.js";
import { turnsOf } from "../turns.js";
import { advantageMark, correctMark, lengthMark } from "./marks.js";

const LIMIT = 50; // completions or visits asked for at once
const MOST_PAGES = 20; // that are fetched again when one comes back to a search
const CHOICES = {
  stop: ["Ended by", [["", "anything"], ["end", "its end token"], ["stop_string", "a stop string"], ["length", "the token limit"]]],
  correct: ["Correct", [["", "either"], ["1", "correct"], ["0", "wrong"]]],
  invalid: ["Reward", [["", "valid or not"], ["0", "valid"], ["1", "invalid"]]],
};
const RANGES = { Reward: ["min_reward", "max_reward"], Step: ["first", "last"] };
const NAMES = ["text", "prompt", ...Object.values(RANGES).flat(), ...Object.keys(CHOICES)];
const ASKED = ["text", "prompt", "min_reward", "max_reward", ...Object.keys(CHOICES)];

/** Whether the choices of an address are those of a search. */
export const isSearch = (given) => ["search", ...NAMES].some((name) => Object.hasOwn(given, name));

/** The form; `given` are the choices of the address. Sending it goes to the address of its results. */
export function searchForm(run, given) {
  const text = h("input", { name: "text", type: "search", value: given.text ?? "", placeholder: "Text of a completion",
    "aria-label": "Text of a completion", autocomplete: "off", spellcheck: "false" });
  const prompt = h("input", { name: "prompt", type: "search", value: given.prompt ?? "", placeholder: "Text of its prompt",
    "aria-label": "Text of its prompt", autocomplete: "off", spellcheck: "false" });
  const ranges = Object.entries(RANGES).map(([label, [low, high]]) => h("div", { class: "field", role: "group", "aria-label": label },
    h("span", {}, `${label} from, to`), h("span", { class: "range" }, bound(low, `${label} from`, given), bound(high, `${label} to`, given))));
  const selects = Object.entries(CHOICES).map(([name, [label, options]]) => field(label, select(options, given[name], { name })));
  const filtered = NAMES.some((name) => !["text", "prompt"].includes(name) && given[name]);
  return h("form", { class: "search card", role: "search", onsubmit: (event) => send(event, run) },
    h("div", { class: "row" }, text, prompt, h("button", { class: "main" }, "Search all steps")),
    h("details", { open: filtered }, h("summary", {}, "Filters"),
      h("div", { class: "row filters" }, ranges, selects)));
}

function bound(name, label, given) {
  return h("input", { name, inputmode: "decimal", class: "step", value: given[name] ?? "", autocomplete: "off", "aria-label": label });
}

function send(event, run) {
  event.preventDefault();
  location.hash = address(run, {}, { ...Object.fromEntries(new FormData(event.currentTarget)), search: 1 });
}

/** What was found, the newest first: {element, end()}. It looks until a page is full; more is fetched on request. */
export function searchResults(run, given) {
  const list = h("ol", { class: "results" }), said = h("div", { class: "note said-found", role: "status" });
  const further = h("button", { type: "button", hidden: true, onclick: () => more(true) }, "Search earlier steps");
  const asked = { ...Object.fromEntries(ASKED.map((name) => [name, given[name]])), step: steps(given), limit: LIMIT };
  const leaving = new AbortController();
  const state = { before: null, found: 0, looked: 0, back: null, pages: 0 };

  async function more(byHand) {
    further.hidden = true;
    const wanted = state.found + LIMIT, earlier = state.found;
    do {
      const answer = await get(ofRun(run, "search"), { ...asked, before: state.before }, leaving.signal);
      state.before = answer.next;
      state.found += answer.rows.length;
      state.looked += answer.looked_at;
      state.back = answer.back_to ?? state.back;
      list.append(...answer.rows.map((row) => result(run, row, given)));
      put(said, summary(state, state.before !== null && state.found < wanted));
    } while (state.before !== null && state.found < wanted);
    state.pages += 1;
    further.hidden = state.before === null;
    if (!byHand) return;
    note({ pages: state.pages });
    list.children[earlier]?.querySelector("a").focus();
  }

  async function begin() {
    const wanted = Math.min(MOST_PAGES, Number(given.pages) || 1);
    do await more(false); while (state.pages < wanted && state.before !== null);
  }

  const start = () => begin().catch((error) => {
    if (!leaving.signal.aborted) put(said, trouble(error, start));
  });
  const wrong = reversed(given);
  if (wrong) put(said, h("span", { class: "error" }, wrong));
  else start();
  return {
    element: h("section", { "aria-label": "Completions found" }, said, list, further),
    end: () => leaving.abort(),
  };
}

/** What is wrong with a range whose end is before its beginning; nothing otherwise. */
function reversed(given) {
  const found = Object.entries(RANGES).find(([, [low, high]]) => given[low] && given[high] && Number(given[low]) > Number(given[high]));
  if (!found) return null;
  const [label, [low, high]] = found;
  return `${label} from ${visible(given[low])} to ${visible(given[high])}: the range is empty. Put the smaller number first.`;
}

/** A range as the lab takes it: 3-10, 3-, -10. */
function steps({ first, last }) {
  return first || last ? `${first ?? ""}-${last ?? ""}` : "";
}

function summary({ found, looked, back, before }, going) {
  const words = `${number(found)} found in ${counted(looked, "completion")}`;
  if (before === null) return looked ? `${words}, back to step ${back}: the search is complete.` : "There are no completions to search.";
  return going ? `${words}, back to step ${back}; still searching.` : `${words}, back to step ${back}, the newest first.`;
}

function result(run, row, { text = "", prompt = "" }) {
  const to = address(run, { step: row.step, group: row.group_index }, { c: row.completion_index });
  return h("li", { class: "card result" },
    h("div", { class: "row" },
      h("a", { href: to }, `Step ${row.step}, group ${row.group_index}, completion ${row.completion_index}`),
      row.invalid_reason === null ? h("span", {}, `reward ${number(row.reward)}`) : h("span", { class: "mark bad" }, "invalid reward"),
      advantageMark(row.advantage), correctMark(row.correct), lengthMark(row)),
    row.invalid_reason === null ? null : h("p", { class: "bad" }, written(row.invalid_reason)),
    row.prompt && highlighted(row.prompt, prompt, "note"), highlighted(row.text, text));
}

/** The text with every hit marked: the text is cut, never its markup. */
function highlighted(text, wanted, look = "text") {
  return h("p", { class: look }, cut(text, wanted).map(([part, hit]) => (hit ? h("mark", {}, visible(part)) : visible(part))));
}

function cut(text, wanted) {
  const where = folded(text), what = folded(wanted).text, parts = [];
  let from = 0;
  for (let at = what ? where.text.indexOf(what) : -1; at >= 0; at = where.text.indexOf(what, at + what.length)) {
    const start = where.origin[at], end = where.origin[at + what.length];
    parts.push([text.slice(from, start), false], [text.slice(start, end), true]);
    from = end;
  }
  return [...parts, [text.slice(from), false]].filter(([part]) => part !== "");
}

/** The text in small letters, and where each of its signs comes from: some letters become two. */
function folded(text) {
  const signs = [], origin = [];
  let at = 0;
  for (const sign of text) {
    for (const small of sign.toLowerCase().replaceAll("\u00df", "ss")) {
      for (let unit = 0; unit < small.length; unit++) origin.push(at);
      signs.push(small);
    }
    at += sign.length;
  }
  return { text: signs.join(""), origin: [...origin, at] };
}

// One problem through training: each of its groups, and how reward and correctness went.

const CHARTS = [["Mean reward", "mean", ""], ["Share correct", "correct", "share"]];

/** {title, children} of a problem's visits. */
export async function historyView(run, problem) {
  const visits = [];
  const drawn = CHARTS.map((kind) => course(kind, visits));
  const charts = h("div", { class: "charts" }, drawn.map(({ element }) => element)), ends = h("div", { class: "ends" }), list = h("ol", { class: "visits" });
  const further = h("button", { type: "button", onclick: () => more(true) }, "Earlier visits");
  let next = null, answer = null;

  async function more(byHand) {
    answer = await get(ofRun(run, "history"), { problem, before: next, limit: LIMIT });
    next = answer.next;
    visits.unshift(...answer.visits.toReversed());
    const fresh = answer.visits.map((visit) => h("li", {}, visitCard(run, visit)));
    list.append(...fresh);
    drawn.forEach((one) => one.draw());
    if (visits.length > 1) put(ends, visitCard(run, visits[0], "Then"), visitCard(run, visits.at(-1), "Now"));
    further.hidden = next === null;
    if (byHand) fresh[0]?.querySelector("a").focus();
  }

  await more(false);
  const title = "A problem through training";
  const named = h("p", { class: "note" }, written(problem));
  const none = h("p", {}, "This run has not sampled this problem. ", h("a", { href: address(run) }, "All groups of the run"), " name their problems.");
  if (!answer.total) return { title, children: h("section", { class: "card" }, named, none) };
  return {
    title,
    children: [
      h("section", { class: "card" }, named,
        answer.prompt === null ? null : turnsOf(answer.messages, answer.prompt)),
      h("p", {}, `Sampled ${answer.total === 1 ? "once" : `${number(answer.total)} times`} in this run.`),
      visits.length > 1 ? [charts, ends] : h("p", { class: "note" }, "If the run samples the problem again, this page shows how its completions change."),
      h("h2", {}, "Every visit, newest first"), list, further,
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
