import { Gone } from "./api.js";
import { h, put } from "./dom.js";

// What would turn text around, hide it, move the cursor or take room without being seen: controls (ANSI's escape among
// them), format signs (bidi, zero widths, tags), line separators, and fillers that look like nothing.
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\u2028\u2029\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]/gu;

/** The text with everything that cannot be seen, or that changes how the rest is seen, shown by its number. */
export function visible(text) {
  return String(text).replace(UNSEEN, (sign) => `\u27e8${sign.codePointAt(0).toString(16).padStart(4, "0")}\u27e9`);
}

/** Text that somebody else wrote (a model, a data set), as text. */
export function written(text, attributes = {}) {
  return h("span", { ...attributes, class: `text ${attributes.class ?? ""}`.trim() }, visible(text));
}

/** The same of any value; nothing is said so. */
export function said(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 1);
  return text === "" ? h("span", { class: "note" }, "(empty)") : written(text);
}

/** What a run is called: its path below the folder of runs. */
export function named(run) {
  return visible(run.replaceAll("~", "/"));
}

/** A number as people read it, with a true minus; a dash for none. `numbers.js` has those of a written-out arithmetic. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
  if (value < 0) return `\u2212${number(-value, digits)}`;
  if (Number.isInteger(value)) return (value || 0).toLocaleString("en"); // 0 for the other zero as well
  if (value < 1e-3 || value >= 1e7) return value.toExponential(1);
  return value.toLocaleString("en", { maximumFractionDigits: value >= 100 ? 0 : value >= 10 ? 1 : digits });
}

/** The same with a plus above 0. */
export function signed(value, digits = 3) {
  return value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

/** A count with its noun: "1 run", "2 runs". */
export function counted(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function percent(share) {
  return share === null || share === undefined ? "\u2013" : `${number(100 * share, 1)}%`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "\u2013";
  if (seconds < 120) return `${number(seconds, 1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// Values beside a chart, on its axes and in columns, by their unit.

const ENDLESS = 1e15; // from where on digits would fill the page
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];

/** What a chart can be drawn over. */
export const AXES = {
  step: { label: "step", unit: "step", of: (value) => `step ${number(value)}` },
  tokens: { label: "completion tokens", unit: "tokens", of: (value) => counted(value, "token") },
  seconds: { label: "time of the steps", unit: "s", of: duration },
};

/** A number with as many digits behind the point as all others of its column; a dash for none. */
export function fixed(value, digits) {
  if (typeof value !== "number" || Number.isNaN(value)) return number(null);
  if (value < 0) return `\u2212${fixed(-value, digits)}`;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** A share in a column of shares. */
export function share(value) {
  return typeof value === "number" ? `${fixed(100 * value, 1)}%` : number(null);
}

/** The ends of an interval of shares, or of another measure. */
export function between([low, high], unit = "share") {
  return unit === "share" ? `${fixed(100 * low, 1)} to ${fixed(100 * high, 1)}` : `${fixed(low, 3)} to ${fixed(high, 3)}`;
}

/** A time in a column of times. */
export function time(seconds) {
  return typeof seconds === "number" && seconds < 120 ? `${fixed(seconds, 1)} s` : duration(seconds);
}

const ROUNDING = 2e-7; // float32: a loss below it is the rounding of a sum that is 0, as on-policy advantages make it

/** A loss in words where it is nothing but rounding; null elsewhere. */
export function lossOfNothing(loss) {
  return Math.abs(loss) < ROUNDING ? "0 up to rounding" : null;
}

/** A value as the legend has it, with enough digits behind the point to distinguish what is drawn. */
export function shown(value, unit, digits = 3) {
  if (value === null || value === undefined) return number(null);
  if (unit === "share") return share(value);
  if (unit === "loss" && lossOfNothing(value)) return lossOfNothing(value);
  if (unit === "s") return value < 10 ? `${number(value, digits)} s` : duration(value);
  if (value <= -ENDLESS) return `\u2212${shown(-value, unit, digits)}`;
  return value < ENDLESS ? number(value, digits) : value.toExponential(2);
}

/** A value as an axis has it: short, but not so short that the next mark, `step` away, would look the same. */
export function tick(value, unit, step = 1) {
  if (value < 0) return `\u2212${tick(-value, unit, step)}`;
  if (unit === "share") return `${Number((100 * value).toPrecision(4))}%`;
  if (unit === "s") return clock(value);
  if (value >= ENDLESS) return Number(value.toPrecision(3)).toExponential();
  if (value >= 1e4 && step >= value / 1e3) return COMPACT.format(value);
  if (value !== 0 && value < 1e-3) return Number(value.toPrecision(3)).toExponential();
  return String(Number(value.toFixed(Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(step)))))));
}

function clock(seconds) {
  if (seconds !== 0 && seconds % 3600 === 0) return `${seconds / 3600} h`;
  return seconds !== 0 && seconds % 60 === 0 ? `${seconds / 60} min` : `${Number(seconds.toPrecision(4))} s`;
}

/** Distances between the marks of the axis below a chart. */
export function spacing(axis) {
  if (axis === "seconds") return SECONDS;
  return Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
}

// What went wrong, where it has to stay in sight.

/** An element that holds what a promise comes to, or its error. */
export function later(asked, shown) {
  const box = h("div", {}, h("p", { class: "note" }, "Loading."));
  asked.then((answer) => put(box, shown(answer)), (error) => put(box, h("p", { class: "error" }, visible(error.message))));
  return box;
}

/** The sentence of an error; where the lab gave no answer, with a button that tries again. */
export function trouble(error, again) {
  const button = error instanceof Gone ? h("p", {}, h("button", { type: "button", onclick: again }, "Try again")) : null;
  return h("div", { class: "trouble", role: "alert" }, h("p", { class: "error" }, visible(error.message)), button);
}
