// The claims that a comparison answers: a card for each, with its intervals, its curves and the runs behind it.
import { comparing, live } from "../api.js";
import { h, s } from "../dom.js";
import { look, swatch } from "../legend.js";
import { counted, fixed, number, percent, signed, visible } from "../text.js";

const WIDTH = 330, HEIGHT = 120, LEFT = 44, BOTTOM = 20; // of a drawing, in pixels
const ROW = 18, MIDDLE = 48; // of an interval
const SHARES = /^(accuracy|speed|frac_.*)$/;
const SPENT = { tokens: "completion tokens", seconds: "seconds of training", steps: "steps" };
const AT = { tokens: "at equal sampled tokens", seconds: "at equal time", steps: "at equal steps" };

/** A card for each claim; nothing where the comparison has none. */
export function claimCards({ name, claims, variants, seeds }) {
  if (!claims.length) return null;
  const found = new Map(variants.map((one) => [one.name, one]));
  return [
    h("h2", {}, "Claims"),
    h("p", { class: "note" }, "A claim holds here if every interval lies on its side, does not if one lies on the other " +
      "side, or shows that the difference is smaller than what matters (shaded), and is undecided otherwise. Thick: 95% " +
      `Student interval of the difference, over problems and ${counted(seeds.length, "seed")} together. Thin: widened, so that ` +
      "all intervals of the claim are right at once (Bonferroni); it decides. A star: below 5% also when corrected for " +
      "all differences of this page (Holm); a claim holds in the whole table if every difference has one."),
    h("div", { class: "grid claims" }, claims.map((claim) => card(claim, claim.variants.map((one) => found.get(one)), name))),
  ];
}

function card(claim, variants, comparison) {
  const { measured, measure, at, exact, grows } = claim;
  const unit = SHARES.test(measure) ? " in points" : "", span = grows ? ", last less first tenth" : "";
  const what = `${measure.replaceAll("_", " ")}${unit}${span}, ${AT[at]}`;
  return h("article", { class: "card claim" },
    h("p", { class: `found ${claim.verdict.replaceAll(" ", "-")}` }, claim.holds_in_table ? "holds in the whole table" : claim.verdict === "holds" ? "holds here" : claim.verdict),
    h("h3", {}, visible(claim.claim)), h("p", { class: "note" }, visible(claim.source)),
    exact ? [h("p", {}, visible(claim.found)), h("p", {}, h("code", {}, visible(exact)))] : null,
    measured.length ? [h("p", { class: "note" }, what), forest(claim), curves(claim, variants), h("p", { class: "note" }, runsOf(variants, comparison))] : null);
}

const known = ({ difference }) => difference !== null;

/** The differences with their intervals on one axis, 0 and the margin marked. */
function forest({ measured, measure, margin }) {
  const share = SHARES.test(measure), form = (value) => (share ? `${value > 0 ? "+" : ""}${fixed(100 * value, 1)}` : signed(value));
  const ends = measured.filter(known).flatMap(({ difference, interval }) => interval ?? [difference.mean]).map(Math.abs);
  const most = Math.max(margin, 1e-9, ...ends), at = (value) => MIDDLE + ((MIDDLE - 6) * value) / most;
  const line = (ends, look) => ends && s("line", { class: look, x1: at(ends[0]), x2: at(ends[1]), y1: ROW / 2, y2: ROW / 2 });
  const row = ({ left, relation, right, difference, interval, alone, p_in_table: p }) => {
    const said = difference === null ? "no run yet" : `${form(difference.mean)}${p !== null && p < 0.05 ? "*" : ""}`;
    const drawn = s("svg", { class: "whisker", width: 2 * MIDDLE, height: ROW, role: "img", "aria-label": interval ? `from ${interval.map(form).join(" to ")}` : "no interval" },
      s("rect", { class: "margin", x: at(-margin), y: 0, width: at(margin) - at(-margin), height: ROW }),
      s("line", { class: "zero", x1: MIDDLE, x2: MIDDLE, y1: 0, y2: ROW }), line(interval, null), line(alone, "wide"),
      difference && s("circle", { cx: at(difference.mean), cy: ROW / 2, r: 4 }));
    return h("tr", {}, h("th", { scope: "row" }, visible(`${left} ${relation} ${right}`)), h("td", {}, drawn), h("td", { class: "number" }, said));
  };
  return h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, measured.map(row))));
}

/** The measure of each variant, its mean over the seeds with a band: the 95% interval of an accuracy, else all seeds. */
function curves({ measure, at }, variants) {
  const lines = variants.map((variant) => curve(variant, measure, at)).map((points, place) => ({ points, place })).filter(({ points }) => points.length > 1);
  if (!lines.length) return null;
  const all = lines.flatMap(({ points }) => points), share = SHARES.test(measure);
  const xs = all.map(({ x }) => x), ys = all.flatMap(({ low, high }) => [low, high]);
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const [bottom, top] = share ? [Math.max(0, Math.min(...ys)), Math.min(1, Math.max(...ys))] : [Math.min(...ys), Math.max(...ys)];
  const left = (x) => fixedPixels(LEFT + ((WIDTH - LEFT - 6) * (x - first)) / (last - first || 1));
  const down = (y) => fixedPixels(6 + ((HEIGHT - BOTTOM - 6) * (top - Math.max(bottom, Math.min(top, y)))) / (top - bottom || 1));
  const mark = (x, y, anchor, text) => s("text", { x, y, "text-anchor": anchor }, text);
  const value = (y) => (share ? percent(y) : number(y));
  const drawn = lines.flatMap(({ points, place }) => [
    colored(s("path", { class: "band", d: `M${[...points.map(({ x, high }) => [left(x), down(high)]), ...points.toReversed().map(({ x, low }) => [left(x), down(low)])].join("L")}Z` }), "fill", place),
    colored(s("polyline", { points: points.map(({ x, y }) => [left(x), down(y)].join()).join(" "), "stroke-dasharray": look(place).dash.join(" ") || null }), "stroke", place),
  ]);
  return [
    s("svg", { class: "curves", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${measure} by ${SPENT[at]}` }, drawn,
      mark(LEFT - 4, 12, "end", value(top)), mark(LEFT - 4, HEIGHT - BOTTOM, "end", value(bottom)),
      mark(LEFT, HEIGHT - 5, "start", number(first)), mark(WIDTH - 6, HEIGHT - 5, "end", `${number(Math.round(last))} ${SPENT[at]}`)),
    h("div", { class: "chart-legend" }, lines.map(({ place }) => h("span", { class: "item" }, swatch(look(place)), visible(variants[place].name)))),
  ];
}

const fixedPixels = (value) => Number(value.toFixed(1));

function colored(element, property, place) {
  element.style[property] = `var(${look(place).variable})`;
  return element;
}

/** Points of a variant with their bands: of its evaluations, or of a metric of its steps. */
function curve({ held_out: evaluations, series }, measure, at) {
  const spent = at === "steps" ? "step" : at;
  if (measure === "accuracy" || measure === "speed") {
    return evaluations.map(({ solved: { mean, interval }, ...one }) => ({ x: one[spent], y: mean, low: interval?.[0] ?? mean, high: interval?.[1] ?? mean }));
  }
  const values = series.columns[measure] ?? [];
  return values.map((y, place) => ({ x: series[spent][place], y, low: series.low[measure][place], high: series.high[measure][place] })).filter(({ y }) => y !== null);
}

/** Links to the runs of these variants: together in the lab, each to its own report in a file. */
function runsOf(variants, comparison) {
  const folders = variants.flatMap(({ runs }) => Object.values(runs));
  if (live) return h("a", { href: comparing(folders.map((run) => `${comparison}~${run}`)) }, `Its ${counted(folders.length, "run")}`);
  return ["Runs by seed: ", variants.map(({ name, runs }, at) => [at ? "; " : "", visible(name), Object.entries(runs).map(([seed, run]) =>
    [" ", h("a", { href: `${encodeURIComponent(run)}/report.html`, "aria-label": visible(`${name}, seed ${seed}`) }, seed)])])];
}
