// GRPO step by step: one group from its prompt to what the update made of it.
import { note } from "../parts/address.js";
import { file, get, queryOf } from "../parts/api.js";
import { field, h, options, put, select } from "../parts/dom.js";
import { algorithmChoice, readRewards, writeRewards } from "../parts/explain/rewards.js";
import { predictions } from "../parts/explain/predict.js";
import { STAGES } from "../parts/explain/stages.js";
import { walkThrough } from "../parts/explain/walk.js";
import { visible, written } from "../parts/text.js";

const TYPED = "1,0,0,1"; // where there is nothing recorded
const DEFAULT = "grpo"; // whose formulas the page shows unless another is chosen
const LAST = "ppo"; // compares with what a network expects, not with the group

export async function render(page, parameters, query) {
  page.classList.add("explains");
  const [{ runs: all }, words, code, presets, asks, numbers] = await Promise.all([get("runs"), file("stages.json"), get("explain/code"),
    file("presets.json"), file("predictions.json"), get("explain/predictions")]);
  const runs = all.filter((run) => run.status !== "broken" && run.step > 0);
  const asked = askedPlace(query);
  let stage = query.get("stage"), place = asked;
  put(page, h("h1", {}, "GRPO step by step"),
    h("p", { class: "lead" }, "GRPO trains a language model without a critic: the policy writes a group of completions of one prompt, a reward " +
      "function scores them, and an update makes those above the group's mean more probable, and those below it less. This page follows one " +
      "group through a training step, with all its numbers. Reveal one stage at a time; earlier stages stay above."));
  try {
    if (asked?.run && !runs.some(({ id }) => id === asked.run)) throw new Error(`No step found for the run ${visible(asked.run)}: it has no step yet, `
      + "or does not exist. Choose another run or your own rewards above.");
    place = await placeOf(asked, runs);
    const group = await get("explain/group", place);
    const list = Object.entries(STAGES).map(([key, made]) => ({ key, code: code[key], questions: predictions(asks, numbers, key), ...words[key], ...made(group, words[key]) }));
    const walk = walkThrough(list, {
      start: stage,
      onreveal(key) {
        stage = key;
        note({ ...place, stage });
      },
    });
    page.append(chooser(runs, place, presets, () => stage), about(group), walk.element);
    if (asked) walk.scroll();
    return walk.end;
  } catch (error) {
    page.append(chooser(runs, place ?? {}, presets, () => stage), h("p", { class: "error", role: "alert" }, error.message));
    return undefined;
  }
}

/** What the address asks for; null where it leaves the choice to the page. */
function askedPlace(query) {
  const [rewards, algorithm, run, step] = ["rewards", "algorithm", "run", "step"].map((name) => query.get(name));
  if (rewards) return algorithm ? { rewards, algorithm } : { rewards };
  if (!run) return null;
  return step ? { run, step: Number(step) } : { run };
}

/** Where to begin, in this run or a good one: the first step whose group was watched. */
async function placeOf(asked, runs) {
  if (asked?.rewards || asked?.step) return asked;
  if (!asked && !runs.length) return { rewards: TYPED };
  const run = asked?.run ?? preferred(runs);
  const { steps: [step] } = await get("explain/steps", { run });
  if (step === undefined) throw new Error(`No step of ${visible(run)} can be shown: a run records one in ten, if its rewards differ within a group. Choose another run.`);
  return { run, step };
}

/** The newest run of GRPO, or else of another algorithm that compares with the group. */
function preferred(runs) {
  const [own, other] = [runs.find(({ algorithm }) => algorithm === DEFAULT), runs.find(({ algorithm }) => algorithm !== LAST)];
  return (own ?? other ?? runs[0]).id;
}

function about({ source, algorithm, notes }) {
  const which = source.rewards === undefined
    ? ["Step ", h("b", {}, String(source.step)), " of run ", h("b", {}, written(source.run)), ", group ",
      h("b", {}, String(source.group)), ` (counted from 0), trained with ${algorithm.name}.`]
    : [`A group of ${source.rewards.length} typed rewards, with ${algorithm.name}.`];
  return h("div", {}, h("p", {}, which), notes.map((sentence) => h("p", { class: "note" }, sentence)));
}

// Which group the walk-through is about: one that a run recorded, or rewards that the reader types.

/** The fields that lead to another group. `place` is {run, step} or {rewards, algorithm}. */
function chooser(runs, place, presets, stage) {
  const failed = h("p", { class: "error", role: "alert" });
  const go = (parameters) => { location.hash = `#/step${queryOf({ ...parameters, stage: stage() })}`; };
  const button = (name, act) => h("button", { type: "button", onclick: act }, name);
  const examples = Object.entries(presets).map(([name, rewards]) => button(name, () => go({ rewards: rewards.join(","), algorithm: place.algorithm })));
  const recorded = runs.length || place.run ? recordedFields(runs, place, go, failed) : null;
  const made = [h("div", { class: "row", role: "group", "aria-label": "Examples" }, h("span", { class: "note" }, "Examples"), examples),
    typedFields(place, go, failed)];
  return h("div", { class: "card choose" }, failed, recorded,
    recorded ? h("details", { open: !place.run }, h("summary", {}, "Or an example, or your own rewards"), made) : made);
}

function recordedFields(runs, place, go, failed) {
  const chosen = place.run ?? preferred(runs);
  const known = runs.some(({ id }) => id === chosen);
  const names = [...(known ? [] : [[chosen, `${chosen} (no steps)`]]), ...runs.map(({ id, algorithm }) => [id, `${id} (${algorithm})`])];
  const run = select(names.map(([id, name]) => [id, visible(name)]), chosen, { name: "run", onchange: () => list() });
  const step = h("select", { name: "step" });
  const list = async () => {
    try {
      const { steps } = await get("explain/steps", { run: run.value });
      put(step, options(steps.length ? steps.map((one) => [one, String(one)]) : [["", "none"]], place.step));
      put(failed);
    } catch (error) {
      put(failed, error.message);
    }
  };
  if (known) list();
  return fields("A recorded group", () => go({ run: run.value, step: step.value }), field("Run", run), field("Step", step), "Show its group");
}

function typedFields(place, go, failed) {
  const typed = h("input", { type: "text", name: "rewards", autocomplete: "off", value: place.rewards ?? "1, 0, 0, 1" });
  const { element, select: algorithm } = algorithmChoice("Algorithm", place.algorithm ?? "", DEFAULT);
  const submit = () => {
    try {
      go({ rewards: writeRewards(readRewards(typed.value)), algorithm: algorithm.value });
    } catch (error) {
      put(failed, `Rewards: ${error.message}.`);
      typed.focus();
    }
  };
  const named = field("Your own rewards, separated by commas", typed, "field wide");
  return fields("Your own rewards", submit, named, element, "Show these rewards");
}

/** A row of fields with a button at its end; Enter in a field presses it. */
function fields(label, submit, ...parts) {
  const [name] = parts.splice(-1);
  const onkeydown = (event) => event.key === "Enter" && event.target.tagName === "INPUT" && submit();
  const button = h("button", { type: "button", onclick: submit }, name);
  return h("div", { class: "row", role: "group", "aria-label": label, onkeydown }, parts, button);
}
