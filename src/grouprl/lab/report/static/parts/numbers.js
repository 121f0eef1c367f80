// Numbers of an arithmetic that is written out: with as many digits as it takes to follow it with a pencil.
import { h } from "./dom.js";
import { number } from "./text.js";

const DIGITS = 5; // of a number, at least, wherever it begins
const LEAST = 3; // of the smallest number of a column
const TINY = 1e-4; // below it, and from HUGE on, powers of ten are written out
const HUGE = 1e15;
const FLOAT32 = 2e-7; // relative: advantages are recorded as float32
const MOST_TERMS = 16; // of a sum that is written out
const RAISED = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";

/** A number to at least as many digits, without zeros at its end, and with a true minus; a dash for none. */
export function plain(value, digits = DIGITS) {
  if (!Number.isFinite(value)) return number(value);
  return `${value < 0 ? "\u2212" : ""}${unsigned(Math.abs(value), digits)}`;
}

/** The same, with a plus above 0. */
export function withSign(value, digits = DIGITS) {
  return value > 0 ? `+${plain(value, digits)}` : plain(value, digits);
}

/** As a term of a sum: in brackets below 0. */
export function bracketed(value) {
  return value < 0 ? `(${plain(value)})` : plain(value);
}

/** What stands before a result: "= ", or "\u2248 " where writing it has rounded it. */
export function equals(value, digits = DIGITS) {
  const size = Math.abs(value);
  const written = isPower(size) ? Number(size.toExponential(digits - 1)) : Number(size.toFixed(decimals(size, digits)));
  return Math.abs(written - size) <= FLOAT32 * size ? "= " : "\u2248 ";
}

/** Numbers that stand below each other, with equally many digits behind the point as far as their sizes allow it. */
export function column(values, { digits = DIGITS, sign = false } = {}) {
  const sizes = values.filter((value) => Number.isFinite(value) && value !== 0).map(Math.abs);
  const write = sizes.length === 0 ? plain : inColumn(sizes, digits);
  return values.map((value) => `${sign && value > 0 ? "+" : ""}${Number.isFinite(value) ? write(value) : number(null)}`);
}

function inColumn(sizes, digits) {
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  const wanted = Math.max(decimals(most, digits), LEAST - 1 - exponent(least));
  if (isPower(least) || isPower(most) || wanted > 2 * digits) return significant;
  const behind = Math.max(...sizes.map((size) => needed(size, wanted)));
  return (value) => `${value < 0 ? "\u2212" : ""}${Math.abs(value).toFixed(behind)}`;
}

/** As many digits of each, where sizes differ too much for one place of the point. */
function significant(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  const [first, power] = size.toExponential(LEAST - 1).split("e");
  return `${value < 0 ? "\u2212" : ""}${isPower(size) ? timesTen(first, power) : size >= 1000 ? size.toFixed(0) : size.toPrecision(LEAST)}`;
}

function unsigned(size, digits) {
  if (!isPower(size)) return String(Number(size.toFixed(decimals(size, digits))));
  const [first, power] = size.toExponential(digits - 1).split("e");
  return timesTen(Number(first), power);
}

function timesTen(first, power) {
  const raised = power.replace("+", "").replace(/[-0-9]/g, (letter) => (letter === "-" ? "\u207b" : RAISED[letter]));
  return `${first} \u00d7 10${raised}`;
}

function isPower(size) {
  return size !== 0 && (size < TINY || size >= HUGE);
}

function exponent(size) {
  return size === 0 ? 0 : Math.floor(Math.log10(size));
}

function decimals(size, digits) {
  return digits - 1 - Math.min(0, exponent(size));
}

/** How many of so many digits behind the point are not zeros at the end. */
function needed(size, most) {
  return size.toFixed(most).replace(/0+$/, "").split(".")[1]?.length ?? 0;
}

// A mean and a deviation worked out: the numbers are those of worked.py.

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
