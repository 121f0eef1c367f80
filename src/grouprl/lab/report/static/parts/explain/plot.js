// Lines over a grid that the lab computed, with a handle that stands on one of its points: drag it, or focus it and use
// the arrow keys. Between the points nothing is known, so the handle snaps to them.
import { h, put } from "../dom.js";
import { color, look, onTheme, swatch } from "../legend.js";
import { tick } from "../text.js";
import { extent } from "./bars.js";

import uPlot from "../../vendor/uPlot-1.6.32.esm.js";

const FONT = "12px system-ui, sans-serif";
const HEIGHT = 300;
const HATCH = 9; // pixels between the lines of a region
const KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity };
const UNBOUND = Object.fromEntries(["mousedown", "mouseup", "click", "dblclick", "mousemove", "mouseleave", "mouseenter"].map((event) => [event, () => null]));

/**
 * An empty plot: `show(data)` draws {grid, series: [{name, values, look: 1 to 4}], regions: [{from, to, name}],
 * marks: [{at, name?}], range}, and `move(index)` puts the handle on a point of the grid.
 *
 * options: label of the picture; x and y: names of the axes; handle: {name, said(index)}; onmove(index): the user moved it.
 */
export function linePlot(options) {
  const handle = h("div", { class: "handle", role: "slider", tabindex: "0", "aria-label": options.handle.name }, h("span", { class: "grip" }));
  const canvas = h("div", { "aria-hidden": "true" }), legend = h("ul", { class: "legend" });
  const area = h("div", { class: "plot", role: "group", "aria-label": options.label }, canvas, handle);
  const plot = { options, area, canvas, handle, index: 0, data: null, made: null, drawn: null };
  const stop = onTheme(() => (area.isConnected ? plot.drawn?.redraw(false) : stop()));
  new ResizeObserver(() => draw(plot)).observe(area);
  listen(plot);
  return {
    element: h("div", { class: "plotted" }, legend, area),
    show(data) {
      plot.data = data;
      const regions = [...new Set((data.regions ?? []).map(({ name }) => name))];
      put(legend, data.series.map((one) => h("li", {}, swatch(looks(one)), one.name)),
        regions.map((name) => h("li", {}, h("span", { class: "region key" }), name)));
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

const looks = ({ look: number }) => ({ ...look(number - 1), dash: [[], [8, 4], [2.5, 3.5], [10, 3, 2, 3]][number - 1] });

function draw(plot) {
  const { data, area, canvas, options } = plot, width = area.clientWidth;
  if (!data || !width) return;
  plot.made?.destroy();
  plot.drawn = null;
  const { grid, series, range } = data, padded = pad(range ?? extent(series.flatMap(({ values }) => values)));
  const axis = { font: FONT, labelFont: FONT, stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1 },
    values: (_, marks, at, space, step) => marks.map((value) => tick(value, "", step)) };
  const line = (one) => ({ label: one.name, stroke: () => color(looks(one).variable), width: 2.5, dash: looks(one).dash, points: { show: false } });
  plot.made = new uPlot({
    width, height: HEIGHT, legend: { show: false }, padding: [22, 14, 0, 0], series: [{}, ...series.map(line)],
    scales: { x: { time: false, range: [grid[0], grid.at(-1)] }, y: { range: padded } },
    axes: [{ ...axis, label: options.x, size: 28, labelSize: 20 }, { ...axis, label: options.y, size: 58, labelSize: 20 }],
    cursor: { x: true, y: false, drag: { x: false, y: false }, bind: UNBOUND },
    hooks: { drawClear: [(chart) => regions(chart, data)], ready: [(chart) => ready(plot, chart)] },
  }, [grid, ...series.map(({ values }) => values.map((value) => (Number.isFinite(value) ? value : null)))], canvas);
}

/** The marks and the handle, once the axes have their places. */
function ready(plot, drawn) {
  if (drawn !== plot.made) return;
  plot.drawn = drawn;
  drawn.over.append(...(plot.data.marks ?? []).map(({ at, name = "" }) => {
    const mark = h("span", { class: "mark-line" }, h("span", {}, name));
    mark.style.left = `${drawn.valToPos(at, "x")}px`;
    return mark;
  }));
  moveTo(plot, plot.index, false);
}

function pad([low, high]) {
  const room = (high - low || 1) * 0.06;
  return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
}

function regions(chart, { regions: found = [], grid }) {
  const { ctx, bbox: { top, height } } = chart, at = (value) => chart.valToPos(Math.max(grid[0], Math.min(grid.at(-1), value)), "x", true);
  for (const { from, to } of found) {
    const [start, end] = [at(from), at(to)];
    ctx.fillStyle = color("--sunk");
    ctx.fillRect(start, top, end - start, height);
    ctx.fillStyle = color("--line");
    for (let place = start + HATCH; place < end; place += HATCH) ctx.fillRect(place, top, 1.5, height);
  }
}

function moveTo(plot, index, byUser) {
  const { data, drawn, handle, options } = plot;
  if (!data) return;
  plot.index = Math.max(0, Math.min(data.grid.length - 1, index));
  const at = data.grid[plot.index];
  if (drawn) {
    const left = drawn.valToPos(at, "x");
    drawn.setCursor({ left, top: 10 });
    handle.style.left = `${drawn.over.offsetLeft + left}px`;
    handle.style.top = `${drawn.over.offsetTop + drawn.over.clientHeight}px`;
  }
  const said = { min: data.grid[0], max: data.grid.at(-1), now: at, text: options.handle.said(plot.index) };
  for (const [name, value] of Object.entries(said)) handle.setAttribute(`aria-value${name}`, value);
  if (byUser) options.onmove?.(plot.index);
}

function listen(plot) {
  const { area, handle } = plot;
  const follow = ({ clientX }) => moveTo(plot, plot.drawn.posToIdx(clientX - plot.drawn.over.getBoundingClientRect().left), true);
  area.addEventListener("pointerdown", (event) => {
    if (!plot.drawn || event.button !== 0) return;
    event.preventDefault();
    area.setPointerCapture(event.pointerId);
    handle.focus({ preventScroll: true });
    follow(event);
  });
  area.addEventListener("pointermove", (event) => area.hasPointerCapture(event.pointerId) && follow(event));
  handle.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS) || !plot.data) return;
    event.preventDefault();
    event.stopPropagation();
    const far = event.key.startsWith("Page") ? Math.max(1, Math.round(plot.data.grid.length / 10)) / 10 : 1;
    moveTo(plot, plot.index + KEYS[event.key] * far, true);
  });
}
