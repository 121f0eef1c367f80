// How values are written beside a chart and on its axes, by their unit.
import { duration, number } from "./text.js";

const ENDLESS = 1e15; // from where on digits would fill the page
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];

/** What a chart can be drawn over. */
export const AXES = {
  step: { label: "step", unit: "step", of: (value) => `step ${number(value)}` },
  tokens: { label: "completion tokens", unit: "tokens", of: (value) => `${number(value)} tokens` },
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
  return typeof value === "number" ? `${fixed(100 * value, 1)} %` : number(null);
}

/** The ends of an interval of shares. */
export function between([low, high]) {
  return `${fixed(100 * low, 1)} to ${fixed(100 * high, 1)}`;
}

/** A time in a column of times. */
export function time(seconds) {
  return typeof seconds === "number" && seconds < 120 ? `${fixed(seconds, 1)} s` : duration(seconds);
}

/** A value as the legend has it, with as many digits behind the point as tell apart what is drawn. */
export function shown(value, unit, digits = 3) {
  if (value === null || value === undefined) return number(null);
  if (unit === "share") return share(value);
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
