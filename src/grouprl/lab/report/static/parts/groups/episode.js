// An episode as a conversation: the turns of the policy, and what it was shown after each.
import { h } from "../dom.js";
import { duration, number, said, signed, visible, written } from "../text.js";
import { advantageMark } from "./marks.js";

const LONG = 400, LINES = 8; // from where on a text is folded
const ENDS = {
  finished: "The episode is finished.",
  turns: "The episode ended at the limit of its turns.",
  calls: "The episode ended at the limit of its tool calls.",
  tokens: "The episode ended at the limit of its tokens.",
  seconds: "The episode ended at the limit of its time.",
  length: "The episode ended because its last turn was truncated.",
};

/** The conversation; `inside(turn, place)` gives what stands under the heading of a turn of the policy. */
export function conversation({ turns, ended, invalid, reward }, inside) {
  const last = [
    Object.hasOwn(ENDS, ended) ? ENDS[ended] : `The episode ended with the fault ${visible(ended)}.`,
    invalid ? " It is invalid." : null,
    reward === null ? null : [" The environment gave it the reward ", h("b", {}, number(reward)), "."],
  ];
  return h("div", { class: "episode" },
    h("ol", {}, turns.map((turn, place) => h("li", {}, heading(turn, place), inside(turn, place), after(turn)))),
    h("p", {}, last));
}

/** What the policy wrote in a turn, as the cards have it. */
export const turnText = ({ text }) => h("div", { class: "said" }, said(text));

function heading({ advantages: [least, most], reward }, place) {
  return h("div", { class: "row" }, h("h4", {}, `Turn ${place + 1}`),
    h("span", { class: "note" }, "advantage ", advantageMark(least), least === most ? null : [" to ", advantageMark(most)]),
    reward === null ? null : h("span", { class: "note" }, `reward ${signed(reward)}`));
}

function after({ calls, replies, shown, forked }) {
  if (!calls.length && !replies.length) return null;
  const read = forked ? `From here the policy read the conversation written anew: ${number(shown)} other tokens, and it learns none of them.`
    : shown ? `The policy read ${number(shown)} tokens of this, and learns none of them.` : "The episode was over: the policy did not read this.";
  return h("div", { class: "between" }, calls.map(call), replies.map(({ role, content }) =>
    h("div", { class: "message" }, h("span", { class: "role" }, visible(role) || "(no role)"), foldable(content))),
  h("p", { class: "note" }, read));
}

function call({ tool, arguments: given, result, seconds, fault }) {
  return h("div", { class: "message" },
    h("div", { class: "row" }, h("span", { class: "role" }, tool === "" ? "Call that cannot be read" : ["Call of ", written(tool)]),
      h("span", { class: "note" }, seconds < 1 ? `${number(Math.round(1000 * seconds))} ms` : duration(seconds)),
      fault === "" ? null : h("span", { class: "mark bad" }, visible(fault))),
    h("dl", { class: "call" }, [["arguments", given], ["result", result]].map(([name, text]) =>
      [h("dt", {}, name), h("dd", {}, foldable(text))])));
}

/** A text, folded where it is long. */
function foldable(text) {
  if (text.length <= LONG && text.split("\n").length <= LINES) return h("div", { class: "said" }, said(text));
  return h("details", {}, h("summary", {}, written(`${text.slice(0, 60).replace(/\s+/g, " ")}\u2026`)),
    h("div", { class: "said long", tabindex: "0", role: "group", "aria-label": "The whole text" }, said(text)));
}
