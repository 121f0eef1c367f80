// The rewards of a group that the reader makes up: a slider, a number and an "invalid" for each completion.
import { get } from "../api.js";
import { field, h, options, put, say } from "../dom.js";
import { counted } from "../text.js";

const FEWEST = 2;
const MOST = 16;
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
  const editor = { list: h("ol", { class: "editor" }), count: h("b", {}) };
  const given = () => editor.items.map(({ value, off }) => (off ? null : value));
  editor.changed = () => changed(given());
  editor.fewer = h("button", { type: "button", onclick: () => resize(editor, editor.items.length - 1) }, "Remove one");
  editor.more = h("button", { type: "button", onclick: () => resize(editor, editor.items.length + 1) }, "Add one");
  const fill = (next) => drawRows(editor, next.map((reward) => ({ value: reward ?? 0, off: reward === null })));
  fill(rewards);
  const head = h("div", { class: "row" }, h("span", {}, "Completions: ", editor.count), editor.more, editor.fewer);
  const set = (next) => {
    fill(next);
    editor.changed();
  };
  return { element: h("div", {}, head, editor.list), rewards: given, set };
}

function resize(editor, size) {
  if (size < FEWEST || size > MOST) return;
  drawRows(editor, [...editor.items, { value: 0, off: false }].slice(0, size));
  say(counted(size, "completion"));
  editor.changed();
}

/** `items` are {value, off}: the last number of each completion, and whether its reward is invalid. */
function drawRows(editor, items) {
  Object.assign(editor, { items, range: { ...SLIDER } });
  put(editor.count, String(items.length));
  // Not `disabled`: a button that is disabled under the keyboard takes the focus away.
  editor.fewer.setAttribute("aria-disabled", items.length <= FEWEST);
  editor.more.setAttribute("aria-disabled", items.length >= MOST);
  put(editor.list, items.map((item, index) => row(editor, item, index)));
  items.forEach(({ value }) => widen(editor, value));
}

/** One range for all sliders, which holds every reward: it grows while a number is typed, and never shrinks under a hand. */
function widen(editor, reward) {
  const { min, max } = editor.range;
  Object.assign(editor.range, { min: Math.min(min, Math.floor(reward)), max: Math.max(max, Math.ceil(reward)) });
  if (editor.range.min === min && editor.range.max === max) return;
  for (const { slider, value } of editor.items) Object.assign(slider, { min: editor.range.min, max: editor.range.max, value });
}

function row(editor, item, index) {
  const name = `Completion ${index}`, { value, off: disabled } = item;
  const set = (next) => {
    item.value = next;
    widen(editor, next);
    editor.changed();
  };
  const slider = h("input", { type: "range", ...editor.range, value, disabled, "aria-label": `${name}: reward`, oninput: () => {
    typed.value = slider.value;
    set(Number(slider.value));
  } });
  const typed = h("input", { type: "number", step: "any", value, disabled, "aria-label": `${name}: reward as a number`, oninput: () => {
    if (typed.value === "" || !Number.isFinite(typed.valueAsNumber)) return;
    set(typed.valueAsNumber);
    slider.value = typed.value;
  } });
  const invalid = h("input", { type: "checkbox", checked: disabled, onchange: () => {
    item.off = slider.disabled = typed.disabled = invalid.checked;
    set(Number(typed.value));
  } });
  item.slider = slider;
  const place = h("span", { class: "index", "aria-hidden": "true" }, String(index));
  return h("li", {}, place, slider, typed, h("label", {}, invalid, "invalid"));
}

/** A choice of an algorithm that compares whole completions; `none` names the choice of no other one. Gives {element, select}. */
export function algorithmChoice(title, chosen, none) {
  const select = h("select", { name: "algorithm" });
  const show = (others) => put(select, options([["", none], ...others], chosen));
  show(chosen ? [[chosen, chosen]] : []);
  get("explain/algorithms").then(({ algorithms }) => show(algorithms.filter(({ name }) => name !== none)
    .map(({ name, formula }) => [name, `${name}: ${formula}`]))).catch(() => {}); // the page itself says that the lab does not answer
  return { element: field(title, select, "field wide"), select };
}
