// One chart: a thin wrapper of uPlot that grows, resizes, follows the theme, and can be read and walked by keyboard.
import { h, put, write } from "./dom.js";
import { layers } from "./layers.js";
import { color, legend, onTheme, withInterval } from "./legend.js";
import { AXES, shown, spacing, tick } from "./text.js";

import uPlot from "../vendor/uPlot-1.6.32.esm.js";

const HEIGHT = 200;
const FONT = "12px system-ui, sans-serif";
const KEYS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
let made = 0;

/**
 * A chart of one or more lines over one axis.
 *
 * Options: `label`, `lines` ([{label, look}]), `unit`; `view`, what charts of a page share ({axis, smooth, zoom, sync});
 * `stacked` areas, or `bands` of intervals; `floor` and `ceiling` of the values; `until()`, how far the axis goes at least;
 * `log`; `marks()`, where something went wrong; `fixed`, no line can be switched off in the legend; `where(at, x)`, what a place is called; `pick(at)`, when one is
 * chosen; `zoomed(range)`, when a part of the axis is.
 */
export class Chart {
  #options;
  #plot = null;
  #data = { x: [], columns: [] };
  #layers = null;
  #built = "";
  #at = null; // where the cursor is
  #walked = null; // where the keyboard has put it
  #hidden = new Set();
  #ends = [];

  constructor(options) {
    this.#options = options;
    const id = `chart-${++made}`;
    this.log = options.log === true;
    this.seen = false; // whether it is in view
    this.area = h("div", {
      class: "chart-area", tabindex: "0", role: "slider", "aria-label": options.label, "aria-describedby": id,
      "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0",
    });
    this.summary = h("p", { class: "unseen", id });
    const toggles = options.lines.length > 1 && !options.stacked && !options.fixed;
    this.legend = legend(options, toggles ? (line, on) => this.toggle(line, on) : null);
    this.element = h("div", { class: "chart" }, this.area, this.legend.element, this.summary);
    this.area.addEventListener("keydown", (event) => this.#key(event));
    this.area.addEventListener("blur", () => {
      this.#walked = null;
      this.#plot?.setCursor({ left: -10, top: -10 });
    });
    this.area.addEventListener("mousemove", () => { this.#walked = null; });
    const resizes = new ResizeObserver(() => {
      const width = this.area.clientWidth;
      if (this.#plot && width && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
    });
    resizes.observe(this.area);
    this.#ends = [() => resizes.disconnect(), onTheme(() => this.#plot?.redraw())];
  }

  /** Shows these values: {x, columns, smooth?, low?, high?}; columns in the order of the lines. */
  draw(data) {
    this.#data = data;
    const { view } = this.#options;
    const kind = `${this.log} ${view.smooth && Boolean(data.smooth)}`;
    if (this.#built !== kind) this.#build(kind);
    else this.#plot.batch(() => this.#plot.setData(this.#table()));
    if (this.#walked !== null) this.#put(this.#walked);
    write(this.summary, summary(this.#options, data, (at, x) => this.#where(at, x)));
    this.area.setAttribute("aria-valuemax", String(Math.max(0, data.x.length - 1)));
    this.#showValues();
    // What has the focus is read out whenever it changes.
    if (document.activeElement !== this.area && data.x.length) this.#value(data.x.length - 1);
  }

  /** What a file of the chart is made of; see picture.js. */
  get drawn() {
    return { ...this.#options, data: this.#data, plot: this.#plot };
  }

  end() {
    this.#ends.forEach((end) => end());
    this.#plot?.destroy();
    this.#plot = null;
  }

  #build(kind) {
    this.#plot?.destroy();
    this.#built = kind;
    this.#layers = layers(this.#options, this.#options.view.smooth && Boolean(this.#data.smooth));
    put(this.area);
    this.#plot = new uPlot(this.#settings(), this.#table(), this.area);
    // A tap is how a finger asks for values; only a mouse can do that without a click.
    this.#plot.over.addEventListener("click", ({ pointerType }) => {
      if (pointerType === "mouse" && this.#at !== null) this.#options.pick?.(this.#at);
    });
    this.#hidden.forEach((line) => this.#switch(line, false));
  }

  #table() {
    const columns = this.#layers.table(this.#data);
    // A logarithm has no place for 0 and below.
    const positive = (value) => (value > 0 || value === undefined ? value : null);
    return [this.#data.x, ...(this.log ? columns.map((values) => values.map(positive)) : columns)];
  }

  #settings() {
    const { view } = this.#options;
    return {
      width: this.area.clientWidth || 320,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 10, 0, 0],
      series: [{}, ...this.#layers.series],
      bands: this.#layers.bands,
      scales: {
        x: { time: false, range: () => view.zoom ?? this.#whole() },
        y: { distr: this.log ? 3 : 1, range: (_, low, high) => this.#range(low, high) },
      },
      axes: [this.#below(), this.#beside()],
      cursor: this.#cursor(),
      hooks: { setCursor: [(plot) => this.#moved(plot)], setSelect: [(plot) => this.#selected(plot)], draw: [(plot) => this.#mark(plot)] },
    };
  }

  #below() {
    const { view } = this.#options;
    const unit = () => AXES[view.axis].unit;
    return {
      ...this.#axis(), space: 56, size: 26, labelSize: 18, labelGap: 0, labelFont: FONT, label: () => AXES[view.axis].label,
      incrs: () => spacing(view.axis),
      values: (_, marks, at, space, step) => marks.map((value) => tick(value, unit(), step)),
    };
  }

  #beside() {
    const { unit } = this.#options;
    const width = (_, texts) => 18 + 6.6 * Math.max(2, ...(texts ?? []).map((text) => text?.length ?? 0));
    return {
      ...this.#axis(), space: 30, size: width,
      values: (_, marks, at, space, step) =>
        marks.map((value) => (value === null ? "" : tick(value, unit, this.log ? value : step))),
    };
  }

  #axis() {
    // On a logarithmic axis powers of ten alone: lines for the numbers between would hide what is drawn.
    const power = (mark) => Math.abs(Math.log10(mark) - Math.round(Math.log10(mark))) < 1e-9;
    const filter = (plot, marks, axis) => (axis === 1 && this.log ? marks.map((mark) => (power(mark) ? mark : null)) : marks);
    return {
      font: FONT, gap: 4, stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1, filter },
      ticks: { stroke: () => color("--line"), width: 1, size: 4, filter },
    };
  }

  #cursor() {
    const { view } = this.#options;
    return {
      y: false,
      drag: { x: true, y: false, setScale: false, dist: 6 },
      // Charts follow each other's cursor along the axis; `zoomed` reports what is dragged in one.
      sync: {
        key: view.sync, setSeries: false, scales: ["x", null],
        filters: {
          pub: (type) => type === "mousemove" || type === "mouseleave",
          sub: (type) => this.seen || type === "mouseleave",
        },
      },
      bind: { dblclick: () => () => this.#options.zoomed(null) },
    };
  }

  /** The axis from the first value to the last, or to where other charts of the page end. */
  #whole() {
    const { x } = this.#data;
    const low = x[0] ?? 0, high = Math.max(x.at(-1) ?? 1, this.#options.until?.() ?? -Infinity);
    return low < high ? [low, high] : [low - 0.5, low + 0.5];
  }

  #range(low, high) {
    const { floor, ceiling, unit } = this.#options;
    if (this.log) return low > 0 ? uPlot.rangeLog(low, high, 10, true) : [1e-3, 1];
    if (ceiling !== undefined) return [floor, ceiling + 0.03 * (ceiling - floor)];
    if (low === null || low === undefined) return [0, 1];
    const bottom = floor !== undefined && low >= floor ? floor : null;
    const room = 0.07 * (high - (bottom ?? low)) || 0.1 * Math.abs(high) || (unit === "share" ? 0.05 : 1);
    return [bottom ?? low - room, high + room];
  }

  /** Draws a line across the chart at each of `marks()`, places on the axis. */
  #mark(plot) {
    const { ctx, bbox } = plot;
    ctx.fillStyle = color("--bad");
    const places = this.#options.marks?.().map((x) => plot.valToPos(x, "x", true)) ?? [];
    for (const at of places) if (at >= bbox.left) ctx.fillRect(at - 1, bbox.top, 2, bbox.height);
  }

  /** Switches a line off or on. */
  toggle(line, on) {
    if (on === !this.#hidden.has(line)) return;
    if (on) this.#hidden.delete(line);
    else this.#hidden.add(line);
    this.#switch(line, on);
  }

  #switch(line, on) {
    this.#plot?.batch(() => this.#layers.of(line).forEach((place) => this.#plot.setSeries(place + 1, { show: on })));
  }

  #selected(plot) {
    const { left, width } = plot.select;
    if (width < 6) return;
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.#options.zoomed([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
  }

  #moved(plot) {
    this.#at = this.#walked ?? (plot.cursor.left >= 0 ? plot.cursor.idx : null);
    this.#showValues();
  }

  #showValues() {
    const { x, columns } = this.#data;
    const resting = this.#at === null || this.#at >= x.length;
    const at = resting ? x.length - 1 : this.#at;
    if (at < 0) return this.legend.show("", columns.map(() => null), 3);
    // Runs of several lengths end in several places.
    if (resting && this.#options.fixed) return this.legend.show("last values", columns.map(last), this.#digits());
    this.legend.show(this.#where(at, x[at]), columns.map((values) => valueAt(values, at)), this.#digits(), this.#intervals(at));
  }

  /** The interval of each line at a place: [low, high], undefined where it has none. */
  #intervals(at) {
    const { columns, low, high } = this.#data;
    const of = (line) => [low[line][at], high[line][at]];
    return low ? columns.map((_, line) => (of(line).every((end) => typeof end === "number") ? of(line) : undefined)) : [];
  }

  /** Digits behind the point that distinguish values a hundredth of the chart's height apart; at least three. */
  #digits() {
    const { min, max } = this.#plot?.scales.y ?? {};
    return this.log || !(max > min) ? 3 : Math.min(9, Math.max(3, Math.ceil(-Math.log10((max - min) / 100))));
  }

  #where(at, x) {
    return this.#options.where ? this.#options.where(at, x) : AXES[this.#options.view.axis].of(x);
  }

  #key(event) {
    const { x } = this.#data;
    if (!this.#plot || !x.length || event.altKey || event.ctrlKey || event.metaKey) return;
    const last = x.length - 1, at = Math.min(this.#at ?? last, last);
    if (event.key in KEYS) this.#walk(Math.max(0, Math.min(last, at + KEYS[event.key])));
    else if (event.key === "Enter" && this.#options.pick) this.#options.pick(at);
    else if (event.key === "+" || event.key === "=") this.#options.zoomed(this.#nearer(x[at], 0.5));
    else if (event.key === "-") this.#options.zoomed(this.#nearer(x[at], 2));
    else if (event.key === "Escape") this.#options.zoomed(null);
    else return;
    event.preventDefault();
  }

  #walk(at) {
    this.#walked = at;
    this.#put(at);
    this.#value(at);
  }

  #put(at) {
    this.#plot.setCursor({ left: this.#plot.valToPos(this.#data.x[at], "x"), top: 10 });
  }

  #value(at) {
    const { lines, unit } = this.#options;
    const intervals = this.#intervals(at);
    const value = (place) => withInterval(shown(valueAt(this.#data.columns[place], at), unit, this.#digits()), intervals[place], unit);
    const values = lines.map((line, place) => `${line.label} ${value(place)}`);
    this.area.setAttribute("aria-valuenow", String(at));
    this.area.setAttribute("aria-valuetext", `${this.#where(at, this.#data.x[at])}: ${values.join(", ")}`);
  }

  /** The part of the axis around a place, this many times as wide as now; nothing where that is all of it. */
  #nearer(around, times) {
    const { x } = this.#data;
    const { min, max } = this.#plot.scales.x;
    const half = (times * (max - min)) / 2;
    const [from, to] = [Math.max(x[0], around - half), Math.min(x.at(-1), around + half)];
    return (from <= x[0] && to >= x.at(-1)) || from >= to ? null : [from, to];
  }
}

/** A line's value at a place; where other lines alone have one, its last before, unless it has ended. */
function valueAt(values, at) {
  if (values[at] !== undefined) return values[at];
  if (at > values.findLastIndex((value) => value !== undefined)) return null;
  return values.findLast((value, place) => place < at && value !== undefined);
}

const last = (values) => values.findLast((value) => value !== undefined && value !== null) ?? null;

const MOST = 8; // lines described one by one

/** What a chart shows: where it begins and ends, and each line's first, last, lowest and highest value. */
function summary({ lines, unit }, { x, columns }, where) {
  if (!x.length) return "No values yet.";
  const at = (place) => where(place, x[place]);
  const described = lines.slice(0, MOST).map((line, place) => `${line.label}: ${course(columns[place], unit, at)}.`);
  const rest = lines.length > MOST ? [`${lines.length - MOST} more lines.`] : [];
  return [`From ${where(0, x[0])} to ${where(x.length - 1, x.at(-1))}.`, ...described, ...rest].join(" ");
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
