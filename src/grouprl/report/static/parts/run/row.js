// A run as a row of the table of runs, brought up to date in place so that nothing loses the focus or the selection.
import { h, put } from "../dom.js";
import { write } from "../legend.js";
import { spark } from "../spark.js";
import { visible } from "../text.js";
import { fixed, share, time } from "../units.js";
import { actions } from "./actions.js";
import { mark, progress, roughPhase } from "./status.js";

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
