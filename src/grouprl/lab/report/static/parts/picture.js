// A chart as a file: its values as CSV, or a picture in the colors of the page as SVG or PNG.
import { s } from "./dom.js";
import { color } from "./legend.js";
import { AXES, visible } from "./text.js";

const HEAD = 44, EDGE = 10, TWICE = 2; // room for title and names; sharpness of a PNG
const SAID = ["", undefined, "s", "share", "loss"]; // units that the axis has beside its numbers, or that are none
const FONT = { "font-family": "system-ui, sans-serif", "font-size": 12 };

/** Saves a chart {label, lines, view, data, plot} as "CSV", "SVG" or "PNG". */
export async function save(kind, chart) {
  const text = kind === "CSV" ? csv(chart) : new XMLSerializer().serializeToString(drawing(chart));
  const type = kind === "CSV" ? "text/csv" : "image/svg+xml";
  const file = kind === "PNG" ? await png(text, chart.plot) : new Blob([text], { type });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = `${chart.label.replace(/[^\p{L}\p{N}]+/gu, "-")}.${kind.toLowerCase()}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csv({ lines, view, data: { x, columns, low, high } }) {
  const quoted = (text) => `"${visible(text).replaceAll('"', '""')}"`;
  const ends = (line) => (low ? [low[line], high[line]] : []);
  const heads = lines.flatMap(({ label }) => [label, ...(low ? [`${label}, low`, `${label}, high`] : [])]);
  const all = lines.flatMap((_, line) => [columns[line], ...ends(line)]);
  const rows = x.map((at, place) => [at, ...all.map((values) => values[place] ?? "")].join(","));
  return [[AXES[view.axis].label, ...heads].map(quoted).join(","), ...rows, ""].join("\n");
}

function drawing({ label, unit, lines, view, plot }) {
  const [left, top, wide, high] = ["left", "top", "width", "height"].map((side) => plot.bbox[side] / devicePixelRatio);
  const [width, height] = [plot.width + EDGE, plot.height + HEAD], [, ...series] = plot.series;
  const points = (place) => plot.data[0].map((x, at) => [x, plot.data[place][at]]).filter(([x, y]) => y !== null && y !== undefined && x >= plot.scales.x.min && x <= plot.scales.x.max)
    .map(([x, y]) => `${(left + plot.valToPos(x, "x")).toFixed(1)},${(HEAD + top + plot.valToPos(y, "y")).toFixed(1)}`);
  const word = (x, y, text, more = {}) => s("text", { x, y, fill: color("--soft"), ...FONT, ...more }, visible(text));
  const marks = plot.axes.flatMap(({ _splits: at, _values: texts }, side) => (at ?? []).map((value, place) => {
    if (!texts[place]) return null;
    const x = left + plot.valToPos(value, "x"), y = HEAD + top + plot.valToPos(value, "y");
    return side ? word(left - 6, y + 4, texts[place], { "text-anchor": "end" }) : word(x, HEAD + top + high + 18, texts[place], { "text-anchor": "middle" });
  }));
  const areas = [...plot.bands.map(({ series: [upper, lower], fill }) => [upper, lower, fill]),
    ...series.map(({ fill }, place) => [place + 1, null, fill]).filter(([upper,, fill]) => fill?.(plot, upper) && !plot.bands.some((band) => band.series[0] === upper))];
  const floor = HEAD + top + high;
  const filled = areas.filter(([upper]) => plot.series[upper].show).map(([upper, lower, fill]) => {
    const above = points(upper), below = lower === null ? [above.at(-1), above[0]].filter(Boolean).map((point) => `${point.split(",")[0]},${floor}`) : points(lower).reverse();
    return s("polygon", { points: [...above, ...below].join(" "), fill: fill(plot, upper) });
  });
  const strokes = series.map((one, place) => one.show && one.width > 0 && s("polyline", { points: points(place + 1).join(" "), fill: "none",
    stroke: one.stroke(plot, place + 1), "stroke-width": one.width, "stroke-opacity": one.alpha, "stroke-dasharray": one.dash?.join(" ") ?? null }));
  const names = lines.map(({ label: name, look }) => s("tspan", { fill: color(look.variable), dx: 10 }, visible(name)));
  return s("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
    s("rect", { width, height, fill: color("--card") }), word(EDGE, 18, label + (SAID.includes(unit) ? "" : ` (${unit})`), { fill: color("--ink"), "font-weight": 700 }),
    s("text", { x: 0, y: 36, ...FONT }, names), s("path", { d: `M${left} ${HEAD + top}v${high}h${wide}`, fill: "none", stroke: color("--line") }), marks,
    word(left + wide / 2, HEAD + top + high + 34, AXES[view.axis].label, { "text-anchor": "middle" }), filled, strokes);
}

async function png(svg, { width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: TWICE * (width + EDGE), height: TWICE * (height + HEAD) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => { canvas.toBlob(done); });
}
