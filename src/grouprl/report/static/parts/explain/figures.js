// Tables of numbers.
import { h } from "../dom.js";
import { whenSized } from "./draw.js";

/** The head of a column that counts completions. */
export function indexHead() {
  return [h("span", { class: "unseen" }, "completion"), h("span", { "aria-hidden": "true" }, "no.")];
}

/** The columns of a table as its rows. */
export function asRows(columns) {
  return columns[0].map((_, place) => columns.map((values) => values[place]));
}

/** A table whose first column names the row; numbers stand to the right. It scrolls by itself where it is too wide. */
export function figures(label, heads, rows) {
  const side = (place) => (place ? "number" : null);
  const cells = (values) => values.map((value) => h("td", { class: "number" }, value));
  const table = h("table", { class: "figures" },
    h("thead", {}, h("tr", {}, heads.map((name, place) => h("th", { scope: "col", class: side(place) }, name)))),
    h("tbody", {}, rows.map(([name, ...values]) => h("tr", {}, h("th", { scope: "row" }, name), cells(values)))));
  return scrolling(label, table);
}

/** A box that can be reached by keyboard as long as what it holds is wider than it is. */
function scrolling(label, table) {
  const box = h("div", { class: "scroll", role: "region", "aria-label": label }, table);
  whenSized(box, () => {
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  });
  return box;
}
