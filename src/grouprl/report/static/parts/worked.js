// A mean and a deviation worked out, for the page of a group and the walk-through: the numbers are those of worked.py.
import { h } from "./dom.js";
import { bracketed, equals, plain } from "./numbers.js";

const MOST_TERMS = 16; // of a sum that is written out

/** The mean of these rewards; without them, of a set that is not written out. */
export function meanWorked({ count, sum, mean }, rewards = null) {
  const terms = rewards?.filter((reward) => reward !== null).map(bracketed);
  const all = terms ? `(${added(terms)}) / ${count} ${equals(sum)}` : "";
  return [`${all}${plain(sum)} / ${count} ${equals(mean)}`, h("b", {}, plain(mean))];
}

/** The deviation, from the sum of the squared distances to the mean. */
export function deviationWorked({ count, sum_of_squares: squares, divided_by: divided, deviation }) {
  const less = divided < count ? ` (one less than ${count}: sample deviation)` : "";
  return [`\u221a(${plain(squares)} / ${divided}${less}) ${equals(deviation)}`, h("b", {}, plain(deviation))];
}

export function added(terms, most = MOST_TERMS) {
  return (terms.length <= most ? terms : [...terms.slice(0, most - 2), "\u2026", terms.at(-1)]).join(" + ");
}
