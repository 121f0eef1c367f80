// Numbers as the explainers show them: with a true minus, and powers of ten as people write them.
import { h } from "../dom.js";
import { number } from "../text.js";
import { whenSized } from "./draw.js";

const RAISED = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";

export function plain(value, digits = 4) {
  if (value === null || value === undefined) return number(value);
  const [size, power] = number(Math.abs(value), digits).split("e");
  const raised = power?.replace("+", "").replace(/[-0-9]/g, (sign) => (sign === "-" ? "\u207b" : RAISED[sign]));
  return `${value < 0 ? "\u2212" : ""}${size}${raised ? ` \u00d7 10${raised}` : ""}`;
}

/** The same, with a plus above 0. */
export function withSign(value, digits = 4) {
  return value > 0 ? `+${plain(value, digits)}` : plain(value, digits);
}

/** A number above 0 of any size, to as many digits wherever they begin. */
export function toDigits(value, digits = 3) {
  if (value === null || value === undefined || value < 1e-4) return plain(value, digits);
  return value.toLocaleString("en", { maximumSignificantDigits: digits });
}

/** The head of a column that counts completions. */
export function indexHead() {
  return [h("span", { class: "unseen" }, "completion"), h("span", { "aria-hidden": "true" }, "no.")];
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
