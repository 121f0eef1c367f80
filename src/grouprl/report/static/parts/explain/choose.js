// Which group the walk-through is about: one that a run recorded, or rewards that the reader types.
import { get } from "../api.js";
import { field, h, put } from "../dom.js";
import { plain } from "../numbers.js";
import { visible } from "../text.js";
import { algorithmChoice, readRewards, writeRewards } from "./rewards.js";

const MOST_GROUPS = 200; // that are asked for at once
const DEFAULT = "grpo"; // whose formulas the page shows unless another is chosen
const LAST = "ppo"; // compares with what a network expects, not with the group

/** The runs that have a step, the newest first. */
export async function walkableRuns() {
  return (await get("runs")).runs.filter((run) => run.status !== "broken" && run.step > 0);
}

/** Where to begin, in this run or a good one: a group whose update was looked at, which is one with mixed rewards. */
export async function firstPlace(runs, run = preferred(runs)) {
  return { run, ...await watchedPlace(run) };
}

/** The newest run of GRPO, or else of another algorithm that compares with the group. */
function preferred(runs) {
  const [own, other] = [runs.find(({ algorithm }) => algorithm === DEFAULT), runs.find(({ algorithm }) => algorithm !== LAST)];
  return (own ?? other ?? runs[0]).id;
}

async function watchedPlace(run) {
  const { steps } = await get(`runs/${encodeURIComponent(run)}/groups`, { limit: 1 });
  const first = { step: steps[0], group: 0 };
  const { stages } = await get("explain/group", { run, ...first });
  return stages.update.watched[0] ?? first;
}

/** The fields that lead to another group. `place` is {run, step, group} or {rewards, algorithm}. */
export function chooser(runs, place, stage) {
  const failed = h("p", { class: "error", role: "alert" });
  const go = (parameters) => {
    const kept = stage() ? { ...parameters, stage: stage() } : parameters;
    location.hash = `#/step?${new URLSearchParams(kept).toString().replaceAll("%2C", ",")}`;
  };
  const none = h("p", { class: "note" }, "No run has recorded a group yet, so these are rewards of your own.");
  const recorded = runs.length || place.run ? recordedFields(runs, place, go, failed) : none;
  return h("div", { class: "card choose" }, failed, recorded, typedFields(place, go, failed));
}

function recordedFields(runs, place, go, failed) {
  const chosen = place.run ?? preferred(runs);
  const known = runs.some(({ id }) => id === chosen);
  const options = [...(known ? [] : [[chosen, `${chosen} (no steps)`]]), ...runs.map(({ id, algorithm }) => [id, `${id} (${algorithm})`])];
  const run = h("select", { name: "run" }, options.map(([id, name]) =>
    h("option", { value: id, selected: id === chosen }, visible(name))));
  const step = h("input", { type: "number", min: 1, step: 1, value: place.step ?? "" });
  const range = h("span", {}, "Step");
  const group = h("select", { name: "group" });
  const list = async (parameters) => {
    try {
      const found = await get(`runs/${encodeURIComponent(run.value)}/groups`, { ...parameters, limit: MOST_GROUPS });
      const { steps: [first, last] } = found;
      put(range, `Step (${first} to ${last})`);
      Object.assign(step, { min: first, max: last, value: found.step });
      put(group, found.groups.map((one) =>
        h("option", { value: String(one.group_index), selected: one.group_index === place.group }, groupName(one))));
      put(failed);
    } catch (error) {
      put(failed, error.message);
    }
  };
  run.addEventListener("change", () => list({}));
  step.addEventListener("change", () => list({ step: step.value }));
  if (known) list(place.run ? { step: place.step } : {});
  return fields("A recorded group", () => go({ run: run.value, step: step.value, group: group.value }),
    field("Run", run), h("label", { class: "field" }, range, step), field("Group", group, "field wide"), "Show this group");
}

function groupName({ group_index: index, mean, deviation, signal }) {
  if (mean === null) return `${index}: no valid reward`;
  return signal ? `${index}: mean ${plain(mean, 3)}, deviation ${plain(deviation, 3)}` : `${index}: all rewards ${plain(mean, 3)}`;
}

function typedFields(place, go, failed) {
  const typed = h("input", { type: "text", name: "rewards", autocomplete: "off", value: place.rewards ?? "1, 0, 0, 1" });
  const { element, select } = algorithmChoice("Algorithm", place.algorithm ?? "", DEFAULT);
  const submit = () => {
    try {
      const rewards = writeRewards(readRewards(typed.value));
      go(select.value ? { rewards, algorithm: select.value } : { rewards });
    } catch (error) {
      put(failed, `Rewards: ${error.message}.`);
      typed.focus();
    }
  };
  const named = field("Rewards of your own, with commas between them", typed, "field wide");
  return fields("Rewards of your own", submit, named, element, "Show these");
}

/** A row of fields with a button at its end; Enter in a field presses it. */
function fields(label, submit, ...parts) {
  const [name] = parts.splice(-1);
  const onkeydown = (event) => event.key === "Enter" && event.target.tagName === "INPUT" && submit();
  const button = h("button", { type: "button", onclick: submit }, name);
  return h("div", { class: "row", role: "group", "aria-label": label, onkeydown }, parts, button);
}
