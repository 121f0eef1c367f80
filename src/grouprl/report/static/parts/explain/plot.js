// Lines over a grid that the lab computed, with a handle that stands on one of its points: drag it, or focus it and use
// the arrow keys. Between the points nothing is known, so the handle snaps to them.
import { h, put, s } from "../dom.js";
import { extent, line, place, rect, sized, text, tickNames, ticks, whenSized } from "./draw.js";

const RIGHT = 14;
const NAMED = 20; // pixels above a plot for the name of its upward axis
const MARKED = 18; // and below it for those of the marks
const DIGIT = 7.2;
const BOTTOM = 44;
let clips = 0;

/**
 * An empty plot: `show(data)` draws {grid, series: [{name, values, look: 1 to 4}], regions: [{from, to, name}],
 * marks: [{at, name?}], range}, and `move(index)` puts the handle on a point of the grid.
 *
 * options: label of the picture; x and y: names of the axes; handle: {name, said(index)}; onmove(index): the user moved it.
 */
export function linePlot(options) {
  const svg = s("svg", { class: "plot", role: "group", "aria-label": options.label });
  const base = s("g", { "aria-hidden": "true" });
  const handle = options.handle ? handleOf(options.handle.name) : null;
  put(svg, base, handle);
  const legend = h("ul", { class: "legend" });
  const box = h("div", { class: "drawing" }, svg);
  const plot = { options, svg, base, handle, legend, index: 0, width: 0, data: null, frame: null };
  whenSized(box, (width) => {
    plot.width = width;
    draw(plot);
  });
  if (handle) listen(plot);
  return {
    element: h("div", { class: "plotted" }, legend, box),
    show: (data) => {
      plot.data = data;
      plot.index = Math.min(plot.index, data.grid.length - 1);
      put(legend, data.series.map(entry), [...new Set((data.regions ?? []).map(({ name }) => name))].map(regionEntry));
      draw(plot);
    },
    move: (index) => moveTo(plot, index, false),
    index: () => plot.index,
  };
}

/** The point of a grid next to a value. */
export function nearest(grid, value) {
  return grid.reduce((best, point, index) => (Math.abs(point - value) < Math.abs(grid[best] - value) ? index : best), 0);
}

function entry({ name, look }) {
  const size = { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" };
  const sample = s("svg", size, line(1, 6, 29, 6, `curve look-${look}`));
  return h("li", {}, sample, name);
}

function regionEntry(name) {
  const size = { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" };
  const lines = [5, 14, 23].map((at) => line(at, 0, at, 12, "region-line"));
  return h("li", {}, s("svg", size, rect(0, 0, 30, 12, "region"), lines), name);
}

function handleOf(name) {
  return s("g", { class: "handle", role: "slider", tabindex: "0", "aria-label": name },
    s("line", { class: "stem" }), s("g", { class: "dots" }),
    s("circle", { class: "ring", r: 14 }), s("circle", { class: "grip", r: 9 }),
    s("path", { class: "grip-mark", d: "M-3.5 -3.5 L-6 0 L-3.5 3.5 M3.5 -3.5 L6 0 L3.5 3.5" }));
}

function draw(plot) {
  const { data, width, options } = plot;
  if (!data || !width) return;
  const top = NAMED + ((data.marks ?? []).some(({ name }) => name) ? MARKED : 4);
  const height = top + Math.round(Math.min(320, Math.max(220, width * 0.45)));
  const [from, to] = [data.grid[0], data.grid.at(-1)];
  const [low, high] = padded(data.range ?? extent(data.series.flatMap((one) => one.values)));
  const up = ticks(low, high, 5);
  const left = 14 + DIGIT * Math.max(3, ...tickNames(up).map((name) => name.length));
  const x = place(from, to, left, width - RIGHT);
  const y = place(low, high, height - BOTTOM, top);
  plot.frame = { x, y, height, low, high, left, top };
  sized(plot.svg, width, height);
  const clip = `clip-${(clips += 1)}`;
  put(plot.base,
    s("clipPath", { id: clip }, rect(left, top, width - left - RIGHT, height - top - BOTTOM, "")),
    (data.regions ?? []).map((one) => region(one, plot.frame, from, to)),
    axes(plot, ticks(from, to, width < 480 ? 4 : 8), up),
    (data.marks ?? []).map((mark) => marked(mark, plot.frame)),
    s("g", { "clip-path": `url(#${clip})` }, data.series.map((one) => curve(one, data.grid, x, y))));
  moveTo(plot, plot.index, false);
}

function padded([low, high]) {
  const room = (high - low || 1) * 0.06;
  return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
}

function axes({ width, options, frame }, across, up) {
  const { x, y, height, low, left } = frame;
  const bottom = height - BOTTOM;
  const [namesAcross, namesUp] = [tickNames(across), tickNames(up)];
  return [
    up.map((value, index) => [line(left, y(value), width - RIGHT, y(value), value === 0 ? "axis" : "rule"),
      text(left - 6, y(value) + 4, namesUp[index], { "text-anchor": "end", class: "tick" })]),
    low === 0 ? null : line(left, bottom, width - RIGHT, bottom, "rule"),
    across.map((value, index) => [line(x(value), bottom, x(value), bottom + 4, "axis"),
      text(x(value), bottom + 17, namesAcross[index], { "text-anchor": "middle", class: "tick" })]),
    text(0, 13, options.y, { class: "axis-name" }),
    text((left + width - RIGHT) / 2, height - 6, options.x, { "text-anchor": "middle", class: "axis-name" }),
  ];
}

function marked({ at, name }, { x, height, top }) {
  return [line(x(at), top, x(at), height - BOTTOM, "mark-line"),
    name ? text(x(at), top - 5, name, { "text-anchor": "middle", class: "tick" }) : null];
}

function region({ from, to, name }, { x, height, top }, least, most) {
  const [start, end] = [x(Math.max(from, least)), x(Math.min(to, most))];
  if (end - start < 1) return null;
  const bottom = height - BOTTOM;
  const fits = end - start > 78;
  const words = fits ? text((start + end) / 2, bottom - 10, name, { "text-anchor": "middle", class: "region-name" }) : null;
  const lines = [];
  for (let at = start + 9; at < end; at += 9) lines.push(line(at, top, at, bottom, "region-line"));
  return [rect(start, top, end - start, bottom - top, "region"), lines, words];
}

function curve({ values, look }, grid, x, y) {
  let pen = "M";
  const steps = values.map((value, index) => {
    if (!Number.isFinite(value)) {
      pen = "M";
      return "";
    }
    const step = `${pen}${x(grid[index]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
    return step;
  });
  return s("path", { d: steps.join(""), class: `curve look-${look}` });
}

function moveTo(plot, index, byUser) {
  const { data, frame, handle, options } = plot;
  if (!data) return;
  const last = data.grid.length - 1;
  plot.index = Math.max(0, Math.min(last, index));
  if (handle && frame) placeHandle(plot);
  if (byUser) options.onmove?.(plot.index);
}

function placeHandle({ data, frame, handle, options, index }) {
  const { x, y, height, low, high, top } = frame;
  const at = x(data.grid[index]);
  const [stem, dots, ...grip] = handle.children;
  const ends = { x1: at, x2: at, y1: top, y2: height - BOTTOM };
  for (const [name, value] of Object.entries(ends)) stem.setAttribute(name, value.toFixed(1));
  put(dots, data.series.filter(({ values }) => values[index] >= low && values[index] <= high).map(({ values, look }) =>
    s("circle", { cx: at.toFixed(1), cy: y(values[index]).toFixed(1), r: 4.5, class: `dot look-${look}` })));
  for (const part of grip) part.setAttribute("transform", `translate(${at.toFixed(1)} ${height - BOTTOM})`);
  handle.setAttribute("aria-valuemin", data.grid[0]);
  handle.setAttribute("aria-valuemax", data.grid.at(-1));
  handle.setAttribute("aria-valuenow", data.grid[index]);
  handle.setAttribute("aria-valuetext", options.handle.said(index));
}

function listen(plot) {
  const follow = (event) => {
    const left = plot.svg.getBoundingClientRect().left;
    const places = plot.data.grid.map((value) => plot.frame.x(value));
    moveTo(plot, nearest(places, event.clientX - left), true);
  };
  plot.svg.addEventListener("pointerdown", (event) => {
    if (!plot.frame || event.button !== 0) return;
    event.preventDefault();
    plot.svg.setPointerCapture(event.pointerId);
    plot.handle.focus({ preventScroll: true });
    follow(event);
  });
  plot.svg.addEventListener("pointermove", (event) => {
    if (plot.svg.hasPointerCapture(event.pointerId)) follow(event);
  });
  plot.handle.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(plot.data.grid.length / 10));
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };
    const moves = { ...steps, PageUp: far, PageDown: -far, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();
    moveTo(plot, plot.index + moves[event.key], true);
  });
}
