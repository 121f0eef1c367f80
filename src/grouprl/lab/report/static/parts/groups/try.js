// A completion that the reader types, scored as the run scores its own.
import { ofRun, post } from "../api.js";
import { field, h, put } from "../dom.js";
import { counted, number, trouble, written } from "../text.js";
import { correctMark } from "./marks.js";

/** The folded box below a group; `text` is what it begins with. */
export function tryBox(run, place, text) {
  const typed = h("textarea", { rows: "5", spellcheck: "false", value: text }), said = h("div", { role: "status" });
  const go = h("button", { class: "main" }, "Score it");
  const score = async () => {
    go.setAttribute("aria-disabled", "true");
    put(said, h("p", { class: "note" }, "Loading the task and the rewards in a new process; this takes a few seconds."));
    try {
      put(said, scores(await post(ofRun(run, "try"), { ...place, text: typed.value })));
    } catch (error) {
      put(said, trouble(error, score));
    } finally {
      go.removeAttribute("aria-disabled");
    }
  };
  const submit = (event) => {
    event.preventDefault();
    if (!go.getAttribute("aria-disabled")) score();
  };
  return h("details", { class: "card folded" }, h("summary", {}, "Try your own completion"),
    h("form", { onsubmit: submit }, h("p", { class: "note" }, "Scores any text with the rewards and limits of this run. Nothing is recorded."),
      field("Completion", typed), h("p", {}, go)), said);
}

function scores({ rewards, total, invalid, correct, tokens }) {
  const value = (one) => (one.value === null ? "does not apply" : one.weight === null ? number(one.value) : `${number(one.value)} \u00d7 ${number(one.weight)}`);
  return [h("p", { class: "row" }, correctMark(correct), h("span", { class: "note" }, counted(tokens, "token"))),
    invalid === null ? null : h("p", { class: "bad" }, "Invalid reward: ", written(invalid)),
    h("table", { class: "components" }, h("tbody", {}, rewards.map((one) => h("tr", {}, h("td", {}, written(one.name)), h("td", { class: "number" }, value(one))))),
      h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "reward"), h("td", { class: "number" }, h("b", {}, total === null ? "none" : number(total))))))];
}
