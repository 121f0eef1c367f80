// Equations as HTML, in the notation of docs/algorithms.md. A screen reader gets the sentence instead of the signs.
import { h, s } from "../dom.js";

/** A line of mathematics, and how it is read aloud. */
export function equation(spoken, ...parts) {
  return h("div", { class: "equation", role: "math", "aria-label": spoken }, parts);
}

/** The same within a sentence. */
export function term(spoken, ...parts) {
  return h("span", { class: "term", role: "math", "aria-label": spoken }, parts);
}

/** What the letters of an equation are in this run, or another word about it. */
export function remark(...parts) {
  return h("p", { class: "note remark" }, parts);
}

/** A letter with what stands below it: v("A", "i") is A with index i. */
export function v(letter, below = null) {
  const index = /[a-z]{3}/.test(below ?? "") ? below : h("i", {}, below);
  return h("span", { class: "letter" }, h("i", {}, letter), below === null ? null : h("sub", {}, index));
}

export function power(base, above) {
  return h("span", { class: "letter" }, base, h("sup", {}, above));
}

export function fraction(above, below) {
  return h("span", { class: "fraction" }, h("span", {}, above), h("span", {}, below));
}

export function root(...parts) {
  return h("span", { class: "root" }, rootSign(), h("span", { class: "root-of" }, parts));
}

/** As high as what stands under the root. */
function rootSign() {
  const size = { viewBox: "0 0 10 20", preserveAspectRatio: "none", "aria-hidden": "true" };
  return s("svg", { class: "root-sign", ...size }, s("path", { d: "M0.5 12.5 L3 11 L6 19.5 L10 0" }));
}

// The letters that several stages use.
export const RATIO = () => v("\u03c1", "i,t");
export const ADVANTAGE = () => v("A", "i");
export const TOKEN_ADVANTAGE = () => v("A", "i,t");
export const REWARD = () => v("r", "i");
export const MEAN = () => h("i", {}, "\u03bc");
export const DEVIATION = () => h("i", {}, "\u03c3");
export const POLICY = () => v("\u03c0", "\u03b8");
export const SAMPLER = () => v("\u03c0", "old");
export const REFERENCE = () => v("\u03c0", "ref");
export const TOKEN = () => v("o", "i,t");
