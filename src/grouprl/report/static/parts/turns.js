// The turns of a prompt, each under its role.
import { h } from "./dom.js";
import { said, visible } from "./text.js";

/** Elements of the messages, or of a plain text; those that every prompt of the run has are folded. */
export function turnsOf(messages, text) {
  const all = messages ?? [{ role: "prompt", content: text }], same = all.filter(({ shared }) => shared);
  if (!same.length) return all.map(turn);
  const first = all.indexOf(same[0]), examples = same.filter(({ role }) => role === "assistant").length;
  const what = examples ? `${examples} worked example${examples === 1 ? "" : "s"}` : "The beginning";
  return [all.slice(0, first).map(turn),
    h("details", { class: "message" }, h("summary", {}, `${what}, the same in every prompt`), same.map(turn)),
    all.slice(first + same.length).map(turn)];
}

function turn({ role, content }) {
  return h("div", { class: "message" }, h("span", { class: "role" }, visible(role ?? "") || "(no role)"),
    h("div", { class: "said", tabindex: "0", role: "region", "aria-label": `Message of ${visible(role)}` }, said(content)));
}
