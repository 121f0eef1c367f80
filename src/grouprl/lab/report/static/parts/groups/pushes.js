// What five algorithms push on the same recorded tokens: a row for each token, a column for each algorithm.
import { get, ofRun } from "../api.js";
import { h, put } from "../dom.js";
import { table } from "../table.js";
import { counted, trouble, visible } from "../text.js";
import { column } from "../numbers.js";
import { tint, tinted } from "./marks.js";

const TITLES = { grpo: "GRPO", dr_grpo: "Dr.GRPO", dapo: "DAPO", gspo: "GSPO", cispo: "CISPO" };
const PASSES = [["first", "First update", "Every ratio is 1, so nothing is clipped: the algorithms differ in the baseline, in what divides it and in how they average tokens."],
  ["again", "Again after the update", "A second update on the same tokens: the ratios are those that the run's own update made, and each algorithm clips in its own way."]];
const MOST = 400; // tokens shown
const DIGITS = 3;

/** The folded box of a group with so many completions; it asks the lab when it is opened. */
export function pushesBox(run, { step, group }, count) {
  const body = h("div", {});
  const fill = async () => {
    put(body, h("p", { class: "note" }, "Loading."));
    try {
      put(body, sideBySide(run, { step, group }, count, await get(ofRun(run, "pushes", step, group))));
    } catch (error) {
      put(body, trouble(error, fill));
    }
  };
  const box = h("details", { class: "card folded" }, h("summary", {}, "These tokens under five algorithms"), body);
  box.addEventListener("toggle", () => { if (box.open && !body.firstChild) fill(); });
  return box;
}

function sideBySide(run, place, count, found) {
  const state = { pass: "first", completion: 0 }, shown = h("div", { "aria-live": "polite" });
  const choose = (key, value, button) => {
    state[key] = value;
    for (const other of button.parentElement.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    show();
  };
  const choice = (key, label, options) => h("p", { class: "row", role: "group", "aria-label": label }, options.map(([value, words]) =>
    h("button", { type: "button", "aria-pressed": String(state[key] === value), onclick: (event) => choose(key, value, event.currentTarget) }, words)));
  const show = async () => {
    const { pass, completion } = state;
    try {
      const { tokens } = await get(ofRun(run, "completions", place.step, place.group, completion));
      if (state.pass === pass && state.completion === completion) put(shown, rowsOf(found[pass], completion, tokens));
    } catch (error) {
      put(shown, trouble(error, show));
    }
  };
  show();
  const passes = PASSES.filter(([name]) => found[name]);
  return [
    h("p", { class: "note" }, "How far the loss pushes the log-prob of each token, in percent of what it pushes in the whole step: the optimizer takes the scale of a loss out again. "
      + "Each algorithm makes one update of the recorded rewards, without a KL and without DAPO's length penalty."),
    passes.length > 1 ? choice("pass", "Update", passes) : null,
    choice("completion", "Completion", Array.from({ length: count }, (_, index) => [index, `Completion ${index}`])),
    h("p", { class: "note" }, passes.map(([, name, sentence]) => `${name}: ${sentence} `)), shown];
}

function rowsOf(algorithms, completion, tokens) {
  const names = Object.keys(TITLES).filter((name) => algorithms[name]);
  const shares = names.map((name) => algorithms[name].shares[completion].slice(0, MOST));
  const full = Math.max(...shares.flat().map(Math.abs));
  const texts = column(shares.flat().map((value) => 100 * value), { digits: DIGITS, sign: true });
  const sums = column(names.map((name) => 100 * algorithms[name].sums[completion]), { digits: DIGITS, sign: true });
  // Neighbors with the same numbers share a row: most algorithms push all tokens of a completion alike.
  const rows = [];
  for (let place = 0; place < shares[0].length; place++) {
    const own = shares.map((values, which) => texts[which * values.length + place]), last = rows.at(-1);
    if (last?.own.join() === own.join()) last.tokens.push(tokens[place]);
    else rows.push({ own, tokens: [tokens[place]], values: shares.map((values) => values[place]) });
  }
  const word = ({ id, text }) => (text === null ? `#${id}` : visible(text));
  const cells = rows.map(({ own, tokens: some, values }) => [h("span", {}, h("span", { class: "text" }, some.map(word).join("")),
    some.length > 1 ? h("span", { class: "note" }, ` (${counted(some.length, "token")}, each)`) : null),
  ...own.map((text, which) => tinted(h("span", { class: "tint chip" }, text), tint(values[which], full)))]);
  return [table(`What each algorithm pushes on completion ${completion}, in percent`, ["token", ...names.map((name) => TITLES[name])],
    [["all tokens", ...sums.map((text) => h("b", {}, text))], ...cells]),
  tokens.length > MOST ? h("p", { class: "note" }, `The first ${MOST} tokens.`) : null];
}
