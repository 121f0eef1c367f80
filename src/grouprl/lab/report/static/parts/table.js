// Tables: the first cell of a row names it.
import { h } from "./dom.js";

/** A table of rows, of numbers or of "words"; it scrolls by itself where it is too wide. `look` is the class of its box. */
export function table(label, heads, rows, { kind = "number", look = "card" } = {}) {
  const side = (place) => (place ? kind : null);
  const head = heads.some((one) => one !== "") && h("thead", {}, h("tr", {}, heads.map((one, place) => (one === "" ? h("td")
    : h("th", { scope: "col", class: side(place) }, one)))));
  const row = ([name, ...values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((value) => h("td", { class: kind }, value)));
  const box = h("div", { class: `scroll ${look.startsWith("card") ? "card" : ""}`, role: "region", "aria-label": label },
    h("table", { class: look.replace("card", "").trim() || null }, head, h("tbody", {}, rows.map(row))));
  // Only what is wider than its box has to be reached by keyboard.
  new ResizeObserver(() => {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  }).observe(box);
  return box;
}

/** The same by its columns, within a card. */
export function figures(label, heads, columns) {
  return table(label, heads, columns[0].map((_, place) => columns.map((values) => values[place])), { look: "figures" });
}

/** The same with a row for each completion of a group, in their order. */
export function byCompletion(label, heads, columns) {
  const first = [h("span", { class: "unseen" }, "completion"), h("span", { "aria-hidden": "true" }, "no.")];
  return figures(label, [first, ...heads], [columns[0].map((_, index) => String(index)), ...columns]);
}

export const sumOf = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);
