// The turns of a prompt, each under its role; those that every prompt of the run has are folded.
import { h } from "./dom.js";
import { counted, said, visible } from "./text.js";

export function turnsOf(messages, text) {
  const all = messages ?? [{ role: "prompt", content: text }], same = all.filter(({ shared }) => shared);
  const first = all.indexOf(same[0]), examples = same.filter(({ role }) => role === "assistant").length;
  const what = examples ? counted(examples, "worked example") : "The beginning";
  const folded = h("details", { class: "message" }, h("summary", {}, `${what}, the same in every prompt`), same.map(turn));
  return same.length ? [all.slice(0, first).map(turn), folded, all.slice(first + same.length).map(turn)] : all.map(turn);
}

const turn = ({ role = "", content }) => h("div", { class: "message" }, h("span", { class: "role" }, visible(role) || "(no role)"),
  h("div", { class: "said", tabindex: "0", role: "region", "aria-label": `Message of ${visible(role)}` }, said(content)));
