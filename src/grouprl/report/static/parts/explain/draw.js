// What all drawings of the explainers share: a size of their own in pixels, so that letters stay legible when the page is
// narrow, and axes whose ticks are round numbers.
import { h, put, s } from "../dom.js";

const NARROWEST = 240;

/** A drawing that is made anew when its width changes: `draw(width)` gives [height, children]; narrower than `least` it is scaled. */
export function drawing(label, draw, attributes = {}, least = 0) {
  const svg = s("svg", { role: "img", "aria-label": label, ...attributes });
  let width = 0;
  const redraw = () => {
    if (!width) return;
    const [height, ...children] = draw(Math.max(width, least));
    sized(svg, width, height, Math.max(width, least));
    put(svg, ...children);
  };
  const element = h("div", { class: "drawing" }, svg);
  whenSized(element, (found) => {
    width = found;
    redraw();
  });
  return { element, svg, redraw };
}

/** Calls with the width of an element in whole pixels, now and whenever it changes. */
export function whenSized(element, changed) {
  let last = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.max(NARROWEST, Math.floor(entry.contentRect.width));
    if (entry.contentRect.width === 0 || width === last) return;
    last = width;
    changed(width);
  }).observe(element);
}

export function sized(svg, width, height, drawn = width) {
  svg.setAttribute("viewBox", `0 0 ${drawn} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", (height * width) / drawn);
}

/** Where a value of [from, to] lies in pixels between two places. */
export function place(from, to, start, end) {
  const span = to - from || 1;
  return (value) => start + ((value - from) / span) * (end - start);
}

/** Round numbers within [from, to], about as many as asked. */
export function ticks(from, to, about = 5) {
  const rough = (to - from) / about;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((factor) => factor * size >= rough * 0.99);
  const found = [];
  for (let count = Math.ceil(from / step - 1e-9); count * step <= to + step * 1e-9; count += 1) found.push(count * step);
  return found.map((value) => Number(value.toFixed(10)));
}

/** The same as text, with as many digits behind the point as the steps between them need. */
export function tickNames(values) {
  const apart = values.length > 1 ? values[1] - values[0] : 1;
  const digits = Math.max(0, Math.ceil(-Math.log10(apart) - 1e-9));
  return values.map((value) => `${value < 0 ? "\u2212" : ""}${Math.abs(value).toFixed(digits)}`);
}

/** The least and the greatest of finite values, with 0 among them. */
export function extent(values) {
  const finite = values.filter((value) => Number.isFinite(value));
  return [Math.min(0, ...finite), Math.max(0, ...finite)];
}

export function text(x, y, words, attributes = {}) {
  return s("text", { x: x.toFixed(1), y: y.toFixed(1), ...attributes }, words);
}

export function line(x1, y1, x2, y2, name) {
  const [a, b, c, d] = [x1, y1, x2, y2].map((value) => value.toFixed(1));
  return s("line", { x1: a, y1: b, x2: c, y2: d, class: name });
}

export function rect(x, y, width, height, name, attributes = {}) {
  const [a, b, c, d] = [x, y, Math.max(0, width), Math.max(0, height)].map((value) => value.toFixed(1));
  return s("rect", { x: a, y: b, width: c, height: d, class: name, ...attributes });
}
