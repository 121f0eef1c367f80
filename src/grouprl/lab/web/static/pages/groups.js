// The groups of a run: a step as a grid, one group, completions found by a search, or a problem through training.
import { follow } from "../parts/api.js";
import { h, put, say } from "../parts/dom.js";
import { number, visible } from "../parts/text.js";
import { address, move, whole } from "../parts/groups/address.js";
import { grid } from "../parts/groups/grid.js";
import { groupView } from "../parts/groups/group.js";
import { historyView } from "../parts/groups/history.js";
import { advantageLegend } from "../parts/groups/marks.js";
import { isSearch, searchForm, searchResults } from "../parts/groups/search.js";
import { stepChoice } from "../parts/groups/steps.js";

/** What a page of pages/ does: see app.js. */
export function render(page, { run, step, group }, query) {
  const given = Object.fromEntries(query);
  if (group !== undefined) return showView(page, run, groupView(run, { step: Number(step), group: Number(group) }, given));
  if (given.problem !== undefined) return showView(page, run, historyView(run, given.problem));
  return isSearch(given) ? showSearch(page, run, given) : showStep(page, run, whole(step), given);
}

function crumbs(run) {
  return h("nav", { "aria-label": "Where this is", class: "crumbs" },
    h("a", { href: "#/" }, "Runs"), " / ",
    h("a", { href: `#/runs/${encodeURIComponent(run)}` }, visible(run.replaceAll("~", "/"))), " / ",
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
  const title = h("h1", {}, "Groups");
  const known = { steps: null, step: null };
  const load = (to) => table.load(to).catch((error) => say(error.message, "error"));
  const choice = stepChoice((to, follows) => {
    if (follows) history.replaceState(null, "", address(run, { step: to }));
    else move(address(run, { step: to }));
    load(to);
  });
  const table = grid(run, (answer) => {
    Object.assign(known, answer);
    title.textContent = answer.steps ? `Groups of step ${answer.step}` : "Groups";
    put(facts, sentence(answer));
    if (!answer.steps) return;
    choice.set(answer.step, answer.steps);
    if (step === null && location.hash === address(run)) history.replaceState(null, "", address(run, { step: answer.step }));
  });
  const facts = h("p", { class: "note" });
  put(page, crumbs(run), title, choice.element, searchForm(run, {}), advantageLegend(), facts, table.element);
  try {
    await table.load(step, cell(given.at));
  } catch (error) {
    table.end();
    throw error;
  }
  const end = follow(run, known.steps?.[1] ?? 0, {
    step(row) {
      if (known.steps) choice.set(known.step, (known.steps = [known.steps[0], Math.max(known.steps[1], row.step)]));
      else load(null);
    },
    restart: () => load(known.step), // a resume has dropped the steps after its checkpoint
  });
  return () => {
    end();
    table.end();
  };
}

function sentence({ total, steps }) {
  if (!steps) return "No step has been recorded yet.";
  if (!total) return `This step is not recorded: the run has ${steps.join(" to ")}.`;
  const groups = total === 1 ? "One group." : `${number(total)} groups.`;
  return `${groups} A row is a group: one problem and its completions. Arrow keys move, Enter opens.`;
}

function cell(at) {
  const [row, column] = (at ?? "").split(".").map(whole);
  return row === null || column === undefined ? undefined : { row, column: column ?? 0 };
}
