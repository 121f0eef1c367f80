// The groups of a run: a step as a grid, one group, completions found by a search, or a problem through training.
import { follow, get, linked, live, ofRun } from "../parts/api.js";
import { h, put } from "../parts/dom.js";
import { address, move, rename, whole } from "../parts/address.js";
import { grid } from "../parts/groups/grid.js";
import { groupView } from "../parts/groups/group.js";
import { advantageLegend } from "../parts/groups/marks.js";
import { historyView, isSearch, searchForm, searchResults } from "../parts/groups/search.js";
import { counted, named, number, trouble } from "../parts/text.js";

const PAUSE = 90; // milliseconds that the slider rests before its step is asked for

/** What a page of pages/ does: see app.js. */
export function render(page, { run, step, group }, query) {
  const given = Object.fromEntries(query);
  if (group !== undefined) return showView(page, run, groupView(run, { step: Number(step), group: Number(group) }, given));
  if (given.problem !== undefined) return showView(page, run, historyView(run, given.problem));
  return isSearch(given) ? showSearch(page, run, given) : showStep(page, run, whole(step), given);
}

function crumbs(run) {
  return h("nav", { "aria-label": "Where this is", class: "crumbs" },
    linked ? [h("a", { href: "#/" }, "Runs"), " / "] : null,
    h("a", { href: `#/${ofRun(run)}` }, named(run)), " / ",
    h("a", { href: address(run) }, "Groups"));
}

async function showView(page, run, asked) {
  const view = await asked;
  put(page, crumbs(run), h("h1", {}, view.title), view.children);
  requestAnimationFrame(() => view.shown?.());
}

function showSearch(page, run, given) {
  const results = searchResults(run, given);
  put(page, crumbs(run), h("h1", {}, "Completions found"), searchForm(run, given), results.element);
  return results.end;
}

async function showStep(page, run, step, given) {
  const title = h("h1", {}, "Groups"), facts = h("p", { class: "note" }), wrong = h("div", {});
  const known = { steps: null, step: null };
  /** Shows another step. What is shown stays, with its address, until the other is there. */
  const load = async (to, addressed = () => {}) => {
    try {
      if (await table.load(to)) addressed(address(run, { step: known.step }));
      put(wrong);
    } catch (error) {
      if (known.steps) choice.stay(known.step, known.steps);
      put(wrong, trouble(error, () => load(to, addressed)));
    }
  };
  const choice = stepChoice((to, follows) => load(to, follows ? rename : move));
  const table = grid(run, (answer) => {
    Object.assign(known, answer);
    title.textContent = answer.steps ? `Groups of step ${answer.step}` : "Groups";
    put(facts, sentence(answer));
    if (!answer.steps) return;
    choice.set(answer.step, answer.steps, answer.held);
    if (step === null && location.hash === address(run)) rename(address(run, { step: answer.step }));
  });
  put(page, crumbs(run), title, choice.element, wrong, live ? searchForm(run, {}) : null, advantageLegend(), facts, table.element);
  const end = await table.load(step, cell(given.at)).then(() => followed(run, known, choice, load)).catch((error) => {
    table.end();
    throw error;
  });
  return () => {
    end();
    table.end();
  };
}

/** Keeps the page of a running run up to date; gives what ends that. The stream of one that is over would never end. */
async function followed(run, known, choice, load) {
  const { status } = await get(ofRun(run)).catch(() => ({ status: "broken" }));
  if (status !== "running") return () => {};
  const end = follow(run, () => known.steps?.[1] ?? 0, {
    step(row) {
      if (known.steps) choice.set(known.step, (known.steps = [known.steps[0], Math.max(known.steps[1], row.step)]));
      else load(null);
    },
    restart: () => load(known.step), // a resume has dropped the steps after its checkpoint
    status: (found) => found.status === "running" || end(),
  });
  return end;
}

function sentence({ total, steps, of, held }) {
  if (!steps) return "No step has been recorded yet.";
  const rest = held ? ` This file holds ${number(total)} of the ${counted(of, "group")}, from steps ${held.join(", ")}, and truncates `
    + "long texts; grouprl lab shows everything." : "";
  if (!total && held) return rest.trim();
  if (!total) return `The run has not recorded this step: it has steps ${steps.join(" to ")}.`;
  return `${counted(total, "group")}. Each row is a group: one problem and its completions. Arrow keys move the focus, Enter opens a group.${rest}`;
}

function cell(at) {
  const [row, column] = (at ?? "").split(".").map(whole);
  return row === null || column === undefined ? undefined : { row, column: column ?? 0 };
}

// Which step is shown: a slider, the steps before and after, a field for its number, and following the newest.

/**
 * {element, set(step, [first, last]), stay(step, [first, last])}; `chosen(step, follows)` is called when another is to be
 * shown, and `stay` when that came to nothing.
 */
function stepChoice(chosen) {
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
