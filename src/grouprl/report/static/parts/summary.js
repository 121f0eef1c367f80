// A chart in words, for people who listen.
import { shown } from "./units.js";

const MOST = 8; // lines that are told of one by one

/** What a chart shows: where it begins and ends, and each line's first, last, lowest and highest value. */
export function summary({ lines, unit }, { x, columns }, where) {
  if (!x.length) return "No values yet.";
  const at = (place) => where(place, x[place]);
  const told = lines.slice(0, MOST).map((line, place) => `${line.label}: ${course(columns[place], unit, at)}.`);
  const rest = lines.length > MOST ? [`${lines.length - MOST} more lines.`] : [];
  return [`From ${where(0, x[0])} to ${where(x.length - 1, x.at(-1))}.`, ...told, ...rest].join(" ");
}

function course(values, unit, where) {
  const found = values.map((value, at) => [value, at]).filter(([value]) => value !== null && value !== undefined);
  if (!found.length) return "no values";
  const lowest = found.reduce((best, one) => (one[0] < best[0] ? one : best));
  const highest = found.reduce((best, one) => (one[0] > best[0] ? one : best));
  const [first, last] = [found[0], found.at(-1)].map(([value]) => shown(value, unit));
  if (lowest[0] === highest[0]) return `${first} throughout`;
  const extreme = ([value, at]) => `${shown(value, unit)} at ${where(at)}`;
  return `from ${first} to ${last}, lowest ${extreme(lowest)}, highest ${extreme(highest)}`;
}
