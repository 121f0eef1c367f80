// All groups of a step, a row each; of many groups, a page of them at a time.
import { get, ofRun } from "../api.js";
import { h, put, say, write } from "../dom.js";
import { address, note } from "../address.js";
import { counted, fixed, number, written } from "../text.js";
import { FULL, inWords, kindOfGroup, shortSigned, signalMark, tint, tinted } from "./marks.js";

const PAGE = 50; // groups shown at once

/** The grid of one step: {element, load(step), end()}. `loaded` gets each answer; `load` returns whether it is shown. */
export function grid(run, loaded) {
  const state = { run, loaded, step: null, total: 0, first: 0, columns: 0, at: { row: 0, column: 0 }, coming: null };
  state.head = h("div", { class: "columns", role: "row", "aria-rowindex": "1" });
  state.body = h("div", { class: "body", role: "presentation" });
  state.element = h("div", { class: "groupgrid", role: "grid", "aria-label": "Groups and their completions",
    onkeydown: (event) => pressed(state, event), onfocusin: (event) => focused(state, event.target),
    onpointerover: ({ target }) => {
      const link = target.closest("a[aria-label]");
      if (link) link.title = link.getAttribute("aria-label");
    } }, state.head, state.body);
  state.around = h("div", { class: "gridframe" }, state.element);
  state.sideways = h("p", { class: "note sideways", hidden: true });
  state.pager = h("div", { class: "row pager" });
  state.element.addEventListener("scroll", () => hint(state), { passive: true });
  const seen = new ResizeObserver(() => {
    state.element.style.setProperty("--wide", `${state.element.clientWidth}px`);
    hint(state);
  });
  seen.observe(state.element);
  return {
    element: h("div", {}, state.pager, state.sideways, state.around),
    load: (step, at) => load(state, step, at),
    end() {
      state.coming?.abort();
      seen.disconnect();
    },
  };
}

/**
 * Shows another step or page; `at`, a row and column to go to, is given where somebody comes back to one.
 *
 * What is shown stays until the other is there. Gives whether it is: not if yet another was asked for meanwhile.
 */
async function load(state, step, at) {
  state.coming?.abort();
  const coming = (state.coming = new AbortController()), place = at ?? { row: 0, column: 0 };
  const first = place.row - (place.row % PAGE);
  const answer = await get(ofRun(state.run, "groups"), { step, offset: first, limit: PAGE }, coming.signal).catch((error) => {
    if (!coming.signal.aborted) throw error;
  });
  if (coming.signal.aborted) return false;
  const { groups, total } = answer; // and which step, where the newest was asked for
  Object.assign(state, { step: answer.step, total, first, at: { ...place, row: Math.max(0, Math.min(place.row, total - 1)) } });
  state.element.setAttribute("aria-rowcount", total + 1);
  drawHead(state, Math.max(0, ...groups.map((group) => group.completions.length)));
  put(state.body, groups.map((group, row) => h("div", { class: "grouprow filled", role: "row", "aria-rowindex": first + row + 2,
    "data-row": first + row }, cells(state, group))));
  put(state.pager, total > PAGE ? pager(state) : null);
  mark(state);
  state.loaded(answer);
  requestAnimationFrame(() => { // once it is in the page, and after the router went to its top
    if (at && total) go(state);
    else state.element.scrollTop = 0;
    hint(state);
  });
  return true;
}

function pager(state) {
  const { first, total } = state, turn = (row) => load(state, state.step, { row, column: 0 }).catch((error) => say(error.message, "error"));
  const button = (words, row) => h("button", { type: "button", "aria-disabled": String(row < 0 || row >= total),
    onclick: () => row >= 0 && row < total && turn(row) }, words);
  return [button("Groups before", first - PAGE), h("span", {}, `${first} to ${Math.min(total, first + PAGE) - 1} of ${number(total)}`),
    button("Groups after", first + PAGE)];
}

function drawHead(state, columns) {
  state.columns = columns;
  state.element.style.setProperty("--columns", columns);
  state.element.setAttribute("aria-colcount", columns + 1);
  put(state.head, h("span", { role: "columnheader", class: "rowhead" }, "Problem"),
    Array.from({ length: columns }, (_, index) => h("span", { role: "columnheader" }, index)));
}

/** Says that there are more columns than are in sight, and shades the edge that they are behind. */
function hint({ element, around, sideways, columns }) {
  const { scrollLeft, clientWidth, scrollWidth } = element;
  around.classList.toggle("more", scrollLeft + clientWidth < scrollWidth - 1);
  sideways.hidden = scrollWidth <= clientWidth + 1;
  write(sideways, `${counted(columns, "completion")} in a row: scroll sideways to see all of them.`);
}

function cells(state, group) {
  const to = (query) => address(state.run, { step: state.step, group: group.group_index }, query);
  return [
    h("div", { class: "rowhead", role: "rowheader" },
      h("a", { href: to({}), tabindex: "-1", "data-column": 0 },
        h("span", { class: "prompt" }, h("b", {}, `${group.group_index} `),
          group.prompt === "" ? h("span", { class: "note" }, "(empty prompt)") : written(group.prompt)),
        h("span", { class: "facts" }, `mean ${fixed(group.mean, 3)}, deviation ${fixed(group.deviation, 3)} `,
          signalMark(kindOfGroup(group.signal, group.completions))))),
    group.completions.map((completion, place) => h("div", { role: "gridcell", class: "cell" },
      tinted(h("a", {
        href: to({ c: completion.index }), tabindex: "-1", "data-column": place + 1,
        "aria-label": inWords(completion), class: `tint${completion.invalid ? " invalid" : ""}`,
      }, h("span", {}, completion.invalid ? "invalid" : shortSigned(completion.advantage)),
      h("span", { class: "tick" }, completion.correct ? "\u2713" : "")), tint(completion.advantage, FULL)))),
  ];
}

/** Makes the link at the place of the keyboard the one that Tab leads to; gives it. */
function mark({ body, at, first }) {
  for (const other of body.querySelectorAll('a[tabindex="0"]')) other.tabIndex = -1;
  const found = [...body.children[at.row - first]?.querySelectorAll("a") ?? []];
  const link = found[Math.min(at.column, found.length - 1)];
  if (link) link.tabIndex = 0;
  return link;
}

function focused(state, target) {
  const link = target.closest("a[data-column]");
  if (!link) return;
  state.at = { row: Number(link.closest("[data-row]").dataset.row), column: Number(link.dataset.column) };
  mark(state);
  note({ at: `${state.at.row}.${state.at.column}` });
}

const MOVES = {
  ArrowUp: (at) => [at.row - 1, at.column],
  ArrowDown: (at) => [at.row + 1, at.column],
  ArrowLeft: (at) => [at.row, at.column - 1],
  ArrowRight: (at) => [at.row, at.column + 1],
  PageUp: (at, state, rows) => [at.row - rows, at.column],
  PageDown: (at, state, rows) => [at.row + rows, at.column],
  Home: (at, state, rows, far) => [far ? 0 : at.row, 0],
  End: (at, state, rows, far) => [far ? state.total - 1 : at.row, Infinity],
};

function pressed(state, event) {
  const way = MOVES[event.key];
  if (!way || !state.total || event.altKey || event.metaKey) return;
  event.preventDefault();
  const inSight = Math.max(1, Math.floor(state.element.clientHeight / state.body.firstChild.offsetHeight) - 1);
  const [row, column] = way(state.at, state, inSight, event.ctrlKey);
  state.at = { row: Math.max(0, Math.min(state.total - 1, row)), column: Math.max(0, Math.min(state.columns, column)) };
  if (state.at.row >= state.first && state.at.row < state.first + PAGE) go(state);
  else load(state, state.step, state.at).catch((error) => say(error.message, "error"));
}

function go(state) {
  const link = mark(state);
  link?.focus({ preventScroll: true });
  link?.scrollIntoView({ block: "nearest", inline: "nearest" });
}
