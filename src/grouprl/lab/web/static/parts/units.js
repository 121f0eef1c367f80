// How values are written beside a chart and on its axes, by their unit.
import { duration, number, percent } from "./text.js";

const ENDLESS = 1e15; // from where on digits would fill the page
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];

/** What a chart can be drawn over. */
export const AXES = {
  step: { label: "step", unit: "step", of: (value) => `step ${number(value)}` },
  tokens: { label: "completion tokens", unit: "tokens", of: (value) => `${number(value)} tokens` },
  seconds: { label: "time of the steps", unit: "s", of: duration },
};

/** A value as the legend has it, with as many digits behind the point as tell apart what is drawn. */
export function shown(value, unit, digits = 3) {
  if (value === null || value === undefined) return number(null);
  if (unit === "share") return percent(value);
  if (unit === "s") return value < 10 ? `${number(value, digits)} s` : duration(value);
  return Math.abs(value) < ENDLESS ? number(value, digits) : value.toExponential(2);
}

/** A value as an axis has it: short, but not so short that the next mark, `step` away, would look the same. */
export function tick(value, unit, step = 1) {
  if (unit === "share") return `${Number((100 * value).toPrecision(4))}%`;
  if (unit === "s") return clock(value);
  const size = Math.abs(value);
  if (size >= ENDLESS) return Number(value.toPrecision(3)).toExponential();
  if (size >= 1e4 && step >= size / 1e3) return COMPACT.format(value);
  if (size !== 0 && size < 1e-3) return Number(value.toPrecision(3)).toExponential();
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
