// The problem of a group: its messages by role, and its columns.
import { h } from "../dom.js";
import { visible, written } from "../text.js";

export function problemCard(group, links) {
  return h("section", { class: "card problem", "aria-labelledby": "problem-title" },
    h("h2", { id: "problem-title" }, "Problem"),
    h("p", { class: "note" }, written(group.problem_id)),
    messages(group).map(({ role, content }) => h("div", { class: "message" },
      h("span", { class: "role" }, visible(role) || "(no role)"),
      h("div", { class: "said", tabindex: "0", role: "region", "aria-label": `Message of ${visible(role)}` }, shown(content)))),
    columns(group.columns), links);
}

function messages(group) {
  return group.messages ?? [{ role: "prompt", content: group.prompt }];
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
