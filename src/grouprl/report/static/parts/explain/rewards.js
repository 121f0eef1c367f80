// The rewards of a group that the reader makes up: a slider, a number and an "invalid" for each completion.
import { get } from "../api.js";
import { field, h, put, say } from "../dom.js";

const FEWEST = 2;
export const MOST = 16;
const INVALID = "nan";
const SLIDER = { min: -1, max: 2, step: 0.05 }; // further where a reward lies further

/** Rewards from an address or a field: numbers, null for an invalid one. An Error says what was expected. */
export function readRewards(text) {
  const rewards = text.split(",").map((word) => word.trim().toLowerCase()).filter(Boolean).map(readReward);
  const count = rewards.length;
  if (count < FEWEST || count > MOST) throw new Error(`expected ${FEWEST} to ${MOST} rewards, got ${count}`);
  return rewards;
}

function readReward(word) {
  if (word === INVALID || word === "invalid") return null;
  const value = Number(word);
  if (!Number.isFinite(value)) throw new Error(`expected a number or "invalid", got ${JSON.stringify(word.slice(0, 20))}`);
  return value;
}

/** The same as the lab and an address take them. */
export function writeRewards(rewards) {
  return rewards.map((reward) => (reward === null ? INVALID : String(reward))).join(",");
}

/** An editor of rewards; `changed(rewards)` after every change. Gives {element, rewards(), set(rewards)}. */
export function rewardEditor(rewards, changed) {
  const editor = { rewards, kept: [...rewards], changed, list: h("ol", { class: "editor" }), count: h("b", {}) };
  editor.fewer = h("button", { type: "button", onclick: () => resize(editor, editor.rewards.length - 1) }, "Remove one");
  editor.more = h("button", { type: "button", onclick: () => resize(editor, editor.rewards.length + 1) }, "Add one");
  drawRows(editor);
  const head = h("div", { class: "row" }, h("span", {}, "Completions: ", editor.count), editor.more, editor.fewer);
  const set = (next) => {
    Object.assign(editor, { rewards: next, kept: [...next] });
    drawRows(editor);
    changed(next);
  };
  return { element: h("div", {}, head, editor.list), rewards: () => editor.rewards, set };
}

function resize(editor, size) {
  if (size < FEWEST || size > MOST) return;
  const grown = size > editor.rewards.length;
  editor.rewards = grown ? [...editor.rewards, 0] : editor.rewards.slice(0, size);
  editor.kept = grown ? [...editor.kept, 0] : editor.kept.slice(0, size);
  drawRows(editor);
  say(`${size} completions`);
  editor.changed(editor.rewards);
}

function drawRows(editor) {
  put(editor.count, String(editor.rewards.length));
  // Not `disabled`: a button that is disabled under the keyboard takes the focus away.
  editor.fewer.setAttribute("aria-disabled", editor.rewards.length <= FEWEST);
  editor.more.setAttribute("aria-disabled", editor.rewards.length >= MOST);
  editor.range = { ...SLIDER };
  editor.sliders = [];
  put(editor.list, editor.rewards.map((reward, index) => row(editor, reward, index)));
  editor.kept.forEach((value) => widen(editor, value));
}

/** One range for all sliders, which holds every reward: it grows while a number is typed, and never shrinks under a hand. */
function widen(editor, value) {
  const { min, max } = editor.range;
  Object.assign(editor.range, { min: Math.min(min, Math.floor(value)), max: Math.max(max, Math.ceil(value)) });
  if (editor.range.min === min && editor.range.max === max) return;
  editor.sliders.forEach((slider, index) => {
    Object.assign(slider, { min: editor.range.min, max: editor.range.max });
    slider.value = editor.kept[index] ?? 0;
  });
}

function row(editor, reward, index) {
  const name = `Completion ${index}`;
  const value = reward ?? editor.kept[index] ?? 0;
  const off = reward === null;
  const slider = h("input", { type: "range", ...editor.range, value, disabled: off, "aria-label": `${name}: reward` });
  const typed = h("input", { type: "number", step: "any", value, disabled: off, "aria-label": `${name}: reward as a number` });
  const set = (next) => {
    editor.rewards = editor.rewards.with(index, next);
    if (next !== null) {
      editor.kept = editor.kept.with(index, next);
      widen(editor, next);
    }
    editor.changed(editor.rewards);
  };
  slider.addEventListener("input", () => { typed.value = slider.value; set(Number(slider.value)); });
  typed.addEventListener("input", () => {
    if (typed.value === "" || !Number.isFinite(typed.valueAsNumber)) return;
    set(typed.valueAsNumber);
    slider.value = typed.value;
  });
  const invalid = h("input", { type: "checkbox", checked: off, onchange: () => {
    slider.disabled = typed.disabled = invalid.checked;
    set(invalid.checked ? null : Number(typed.value));
  } });
  editor.sliders[index] = slider;
  const place = h("span", { class: "index", "aria-hidden": "true" }, String(index));
  return h("li", {}, place, slider, typed, h("label", {}, invalid, "invalid"));
}

/** A choice of an algorithm that compares whole completions; `none` names the choice of no other one. Gives {element, select}. */
export function algorithmChoice(title, chosen, none) {
  const option = (value, name) => h("option", { value, selected: value === chosen }, name);
  const select = h("select", { name: "algorithm" }, option("", none), chosen && option(chosen, chosen));
  get("explain/algorithms").then(({ algorithms }) => {
    const others = algorithms.filter(({ name }) => name !== none);
    put(select, option("", none), others.map(({ name, formula }) => option(name, `${name}: ${formula}`)));
  }).catch(() => {}); // the page itself says that the lab does not answer
  return { element: field(title, select, "field wide"), select };
}
