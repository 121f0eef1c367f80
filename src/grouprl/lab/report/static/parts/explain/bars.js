// Bars of numbers: signed ones, one row each with its name and its number as text, and parts of a whole in a row.
import { h, put } from "../dom.js";
import { column } from "../numbers.js";

/** The least and the greatest of finite values, with 0 among them. */
export function extent(values) {
  const finite = values.filter((value) => Number.isFinite(value));
  return [Math.min(0, ...finite), Math.max(0, ...finite)];
}

/**
 * Rows of {name, value, text?, said?}: text is what stands beside the bar if not the value itself; value null = there is
 * none, and `said` says why. Gives {element, update(rows, range)}: a range that drawings side by side share can be compared.
 */
export function signedBars(title, rows) {
  const element = h("div", { class: "bars", role: "img" });
  const update = (bare, range = extent(bare.map(({ value }) => value))) => {
    const texts = column(bare.map(({ value }) => value), { sign: true });
    const named = bare.map((row, place) => ({ ...row, text: row.text ?? (Number.isFinite(row.value) ? texts[place] : row.said ?? "none") }));
    element.setAttribute("aria-label", `${title}: ${named.map(({ name, text }) => `${name} ${text}`).join(", ")}`);
    put(element, named.map((row) => [h("span", { class: "name" }, row.name), bar(row.value ?? 0, range), h("span", { class: "value" }, row.text)]));
  };
  update(rows);
  return { element, update };
}

/** Rows for advantages, in the order of their rewards. */
export function advantageBars(advantages, rewards) {
  return advantages.map((value, index) => ({ name: String(index), value: rewards[index] === null ? null : value, said: "invalid" }));
}

function bar(value, [low, high]) {
  const at = (place) => (low === high ? 50 : (100 * (place - low)) / (high - low));
  const [from, to] = [at(Math.min(0, value)), at(Math.max(0, value))];
  const piece = placed(h("span", { class: `bar ${value > 0 ? "plus" : value < 0 ? "minus" : "none"}` }), from, to - from);
  return h("span", { class: "track" }, piece, placed(h("span", { class: "zero" }), at(0), 0));
}

function placed(element, left, width) {
  Object.assign(element.style, { left: `${left}%`, width: `${width}%` });
  return element;
}

/** Parts of {size, variable, strength?, key?} beside each other, as wide as they are of `most`. */
export function stackedBar(parts, most) {
  return h("span", { class: "stacked", "aria-hidden": "true" }, parts.map(({ size, variable, strength = 1, key = "" }) => {
    const piece = h("span", {}, key && h("b", {}, String(key)));
    Object.assign(piece.style, { width: `${(100 * size) / most}%`, background: `color-mix(in srgb, var(${variable}) ${100 * strength}%, var(--card))` });
    return piece;
  }));
}
