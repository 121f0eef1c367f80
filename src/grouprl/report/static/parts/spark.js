// A small line without axes.
import { s } from "./dom.js";
import { number } from "./text.js";

const WIDTH = 96, HEIGHT = 26, EDGE = 2;

/** The course of values, gaps left out; nothing of fewer than two. `label` says what they are. */
export function spark(values, label) {
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
