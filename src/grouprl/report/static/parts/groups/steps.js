// Which step is shown: a slider, the steps before and after, a field for its number, and following the newest.
import { live } from "../api.js";
import { h } from "../dom.js";
import { whole } from "../address.js";
import { number } from "../text.js";

const PAUSE = 90; // milliseconds that the slider rests before its step is asked for

/**
 * {element, set(step, [first, last]), stay(step, [first, last])}; `chosen(step, follows)` is called when another is to be
 * shown, and `stay` when that came to nothing.
 */
export function stepChoice(chosen) {
  const range = { first: 1, last: 1, step: 1, follows: false, held: null };
  let timer = 0;

  function ask(step, { pause = 0, follows = false } = {}) {
    const to = there(Math.max(range.first, Math.min(range.last, step)));
    const same = to === range.step && !timer;
    Object.assign(range, { step: to, follows });
    show();
    if (same) return;
    clearTimeout(timer);
    timer = setTimeout(() => { timer = 0; chosen(to, follows); }, pause);
  }

  /** The step, or where a file holds only some the next of those on the way to it. */
  function there(step) {
    const { held } = range;
    if (!held) return step;
    return (step < range.step ? held.findLast((one) => one <= step) : held.find((one) => one >= step)) ?? range.step;
  }

  const slider = h("input", { type: "range", class: "steps", "aria-label": "Step",
    oninput: () => ask(Number(slider.value), { pause: PAUSE }) });
  const field = h("input", { inputmode: "numeric", class: "step", "aria-label": "Number of the step",
    onchange: () => ask(whole(field.value) ?? range.step) });
  const before = h("button", { type: "button", "aria-label": "Previous step", onclick: () => ask(range.step - 1) }, "\u2190");
  const after = h("button", { type: "button", "aria-label": "Next step", onclick: () => ask(range.step + 1) }, "\u2192");
  const newest = h("button", { type: "button",
    onclick: () => ask(range.follows ? range.step : range.last, { follows: !range.follows }) }, "Follow the newest");
  const of = h("span", { class: "note" });

  function show() {
    Object.assign(slider, { min: range.first, max: range.last, value: range.step });
    slider.setAttribute("aria-valuetext", `step ${range.step} of ${range.last}`);
    field.value = range.step;
    of.textContent = `of ${number(range.last)}`;
    // Not `disabled`: a button that is disabled under the keyboard takes the focus away.
    before.setAttribute("aria-disabled", range.step <= range.first);
    after.setAttribute("aria-disabled", range.step >= range.last);
    newest.setAttribute("aria-pressed", range.follows);
  }

  function set(step, [first, last], held = null) {
    Object.assign(range, { first, last, held }, timer ? {} : { step });
    if (range.follows && step < last) ask(last, { follows: true });
    else show();
  }

  return {
    element: h("div", { class: "row stepchoice" }, before, slider, after, h("label", {}, "Step", field, of), live ? newest : null),
    set,
    stay(step, steps) {
      range.follows = false; // or it would ask again at once, and again
      set(step, steps);
    },
  };
}
