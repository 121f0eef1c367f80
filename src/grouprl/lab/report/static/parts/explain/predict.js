// Questions at a stage: the reader predicts a number, and reveals what the lab computed.
import { h, put } from "../dom.js";
import { plain } from "../numbers.js";
import { filled } from "./walk.js";

const DIGITS = 3;
const CLOSE = 0.01; // a choice is right where its value is this near to the computed one

/** The questions of a stage as elements, null without one; `numbers` are the lab's `explain/predictions`. */
export function predictions(questions, numbers, stage) {
  const words = Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, plain(value, DIGITS)]));
  const own = questions.filter((one) => one.stage === stage);
  return own.length ? h("section", { class: "predict" }, h("h3", {}, "Predict, then reveal"),
    own.map((one) => question(one, numbers[one.asks], words))) : null;
}

function question({ asks, question: text, choices, answer }, value, words) {
  const shown = h("div", { role: "status" });
  const reveal = h("button", { type: "submit" }, "Reveal");
  const right = choices.findIndex(([, number]) => Math.abs(number - value) < CLOSE);
  const onsubmit = (event) => {
    event.preventDefault();
    const chosen = Number(new FormData(event.currentTarget).get(asks) ?? -1);
    const verdict = chosen < 0 ? null : h("span", { class: `mark ${chosen === right ? "good" : "bad"}` }, chosen === right ? "\u2713 right" : "\u2717 wrong");
    put(shown, h("p", {}, verdict, verdict ? " " : null, filled(answer, words)));
  };
  return h("form", { onsubmit },
    h("fieldset", {}, h("legend", {}, filled(text, words)), h("div", { class: "row" }, choices.map(([label], place) =>
      h("label", { class: "row" }, h("input", { type: "radio", name: asks, value: place }), label)), reveal)), shown);
}
