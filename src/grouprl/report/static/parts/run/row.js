// A run as a row of the table of runs, brought up to date in place so that nothing loses the focus or the selection.
import { h, put, s } from "../dom.js";
import { actions } from "../launch.js";
import { write } from "../legend.js";
import { number, visible } from "../text.js";
import { fixed, share, time } from "../units.js";
import { mark, progress, roughPhase } from "./head.js";

export const COLUMNS = ["", "Run", "Status", "Steps", "Reward", "Accuracy", "Held out, before → after", "Tokens/s", "Time", ""];

/** The row; `show(run)` brings it up to date. `chosen` are the ids of the runs to compare, `changed()` tells of a change. */
export function row(run, chosen, changed, names) {
  const box = h("input", { type: "checkbox", checked: chosen.has(run.id), "aria-label": `Compare ${visible(run.name)}` });
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(run.id);
    else chosen.delete(run.id);
    changed();
  });
  const status = mark(), steps = progress(), buttons = actions(names), what = h("span", { class: "note" });
  const reward = withSpark("Reward"), accuracy = withSpark("Accuracy");
  const [held, speed, took] = [0, 1, 2].map(() => h("span", {}));
  const name = h("a", { href: `#/runs/${encodeURIComponent(run.id)}` }, visible(run.id.replaceAll("~", "/")));
  const cells = [box, [name, what], status.element, steps.element, reward.element, accuracy.element, held, speed, took, buttons.element];
  const element = h("tr", { role: "row" }, cells.map((inside, place) => cell(place, inside)));
  const show = (found) => {
    box.disabled = found.status === "broken";
    status.show(found.status);
    steps.show(found.step, found.steps, roughPhase(found));
    buttons.show(found);
    const parts = found.error ? [found.error] : [found.algorithm, found.model, found.task];
    write(what, parts.filter(Boolean).map(visible).join(" · "));
    reward.show(fixed(found.reward, 3), found.sparks?.reward);
    accuracy.show(share(found.accuracy), found.sparks?.accuracy);
    write(held, `${share(found.greedy_before)} → ${share(found.greedy_after)}`);
    write(speed, fixed(found.tokens_per_second, 0));
    write(took, time(found.seconds));
  };
  show(run);
  return { element, show };
}

function cell(place, inside) {
  const heads = place === 1;
  const label = COLUMNS[place];
  const attributes = { "data-label": label || null, class: `of-${place}` };
  return heads ? h("th", { ...attributes, scope: "row", role: "rowheader" }, inside) : h("td", { ...attributes, role: "cell" }, inside);
}

function withSpark(label) {
  const text = h("span", { class: "value" }), line = h("span", {});
  let drawn = null;
  const show = (value, values = []) => {
    write(text, value);
    const key = JSON.stringify(values);
    if (key !== drawn) put(line, spark(values, label));
    drawn = key;
  };
  return { element: h("span", { class: "sparked" }, text, line), show };
}

// A small line without axes.

const WIDTH = 96, HEIGHT = 26, EDGE = 2;

/** The course of values, gaps left out; nothing of fewer than two. `label` says what they are. */
function spark(values, label) {
  const found = values.map((value, at) => [at, value]).filter(([, value]) => typeof value === "number");
  if (found.length < 2) return null;
  const heights = found.map(([, value]) => value);
  const low = Math.min(...heights), high = Math.max(...heights);
  const across = (at) => EDGE + (at / (values.length - 1)) * (WIDTH - 2 * EDGE);
  const up = (value) => HEIGHT - EDGE - (high > low ? (value - low) / (high - low) : 0.5) * (HEIGHT - 2 * EDGE);
  const points = found.map(([at, value]) => `${across(at).toFixed(1)},${up(value).toFixed(1)}`).join(" ");
  const [at, value] = found.at(-1);
  return s("svg", {
    class: "spark", role: "img", width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    "aria-label": `${label} from ${number(found[0][1])} to ${number(value)}, between ${number(low)} and ${number(high)}`,
  }, s("polyline", { points }), s("circle", { cx: across(at).toFixed(1), cy: up(value).toFixed(1), r: 2 }));
}
