// What uPlot draws for the lines of a chart: their intervals, smoothed lines and stacked areas as series and bands.
import { color, faint } from "./legend.js";

const WIDTH = 1.8;

/**
 * The series and bands of a chart, and the table of values in their order.
 *
 * A chart's data are {x, columns} and, by line as well, `smooth`, `low` and `high` where there are such.
 */
export function layers({ lines, stacked, bands, points }, smooth) {
  if (stacked) return stack(lines);
  return bands ? banded(lines, points ?? true) : plain(lines, smooth);
}

function plain(lines, smooth) {
  const strong = lines.map((line) => stroke(line));
  if (!smooth) return { series: strong, bands: [], table: (data) => data.columns, of: (line) => [line] };
  const raw = lines.map((line) => stroke(line, { width: 1, alpha: 0.35 }));
  return {
    series: [...raw, ...strong],
    bands: [],
    table: (data) => [...data.columns, ...data.smooth],
    of: (line) => [line, line + lines.length],
  };
}

function banded(lines, points) {
  const edges = lines.flatMap((line) => [edge(line), edge(line)]);
  const first = lines.length + 1; // after the axis and the lines themselves
  return {
    series: [...lines.map((line) => stroke(line, { points })), ...edges],
    bands: lines.map((line, place) => ({
      series: [first + 2 * place + 1, first + 2 * place],
      fill: () => faint(line.look.variable, 0.16),
    })),
    table: (data) => [...data.columns, ...data.low.flatMap((low, place) => [low, data.high[place]])],
    of: (line) => [line, lines.length + 2 * line, lines.length + 2 * line + 1],
  };
}

function stack(lines) {
  const area = (line) => () => faint(line.look.variable, 0.55);
  return {
    series: lines.map((line) => ({ ...stroke(line, { width: 1 }), fill: area(line) })),
    bands: lines.slice(1).map((line, below) => ({ series: [below + 2, below + 1], fill: area(line) })),
    table: ({ columns }) => sums(columns),
    of: (line) => [line],
  };
}

/** Each column with those before it added; a step that lacks one has none of them. */
function sums(columns) {
  const totals = columns.map((column) => column.slice());
  for (let at = 0; at < (columns[0]?.length ?? 0); at++) {
    const whole = columns.every((column) => column[at] !== null);
    for (let place = 0; place < totals.length; place++) {
      totals[place][at] = whole ? columns[place][at] + (place ? totals[place - 1][at] : 0) : null;
    }
  }
  return totals;
}

function stroke({ label, look }, { width = WIDTH, alpha = 1, points } = {}) {
  return {
    label,
    stroke: () => color(look.variable),
    width,
    alpha,
    dash: look.dash.length ? look.dash : undefined,
    // Unless they are asked for, uPlot draws points where they are few.
    points: { ...(points ? { show: true } : {}), size: points ? 6 : 5, fill: () => color(look.variable) },
  };
}

function edge({ label }) {
  return { label, width: 0, stroke: "transparent", points: { show: false } };
}
