// All groups of a step, a row each. Only the rows in sight exist; their numbers are fetched a page at a time.
import { get } from "../api.js";
import { h, put, say } from "../dom.js";
import { write } from "../legend.js";
import { number, signed, written } from "../text.js";
import { address, note } from "./address.js";
import { FULL, inWords, kept, kindOfGroup, signalMark, tint, tinted } from "./marks.js";

const PAGE = 100; // groups asked for at once
const FILLED = 5; // rows filled in a frame, so that none takes long
const BEYOND = 5; // rows kept above and below those in sight
const AHEAD = 40; // rows beyond those that are fetched already
const PAUSE = 40; // milliseconds between two looks at which pages are needed
const NARROW = matchMedia("(max-width: 700px)");
const HEIGHTS = { wide: 62, narrow: 112 }; // of a row, as in style.css

/** The grid of one step: {element, load(step), end()}. `loaded` is told each answer; `load` gives whether it came to be shown. */
export function grid(run, loaded) {
  const state = {
    run, loaded, step: null, total: 0, columns: 0, pages: new Map(), rows: new Map(), at: { row: 0, column: 0 },
    asked: new AbortController(), coming: null, inSight: [0, 0], timer: 0, frame: 0,
  };
  state.head = h("div", { class: "columns", role: "row", "aria-rowindex": "1" });
  state.canvas = h("div", { class: "canvas", role: "presentation" });
  state.element = h("div", { class: "groupgrid", role: "grid", "aria-label": "Groups and their completions" },
    state.head, state.canvas);
  state.element.addEventListener("scroll", () => soon(state), { passive: true });
  state.element.addEventListener("keydown", (event) => pressed(state, event));
  state.element.addEventListener("pointerover", ({ target }) => {
    const link = target.closest("a[aria-label]");
    if (link) link.title = link.getAttribute("aria-label");
  });
  state.element.addEventListener("focusin", (event) => focused(state, event.target));
  state.around = h("div", { class: "gridframe" }, state.element);
  state.sideways = h("p", { class: "note sideways", hidden: true });
  const seen = new ResizeObserver(() => {
    state.element.style.setProperty("--wide", `${state.element.clientWidth}px`);
    soon(state);
  });
  seen.observe(state.element);
  const turned = () => { clear(state); soon(state); };
  NARROW.addEventListener("change", turned);
  return {
    element: h("div", {}, state.sideways, state.around),
    load: (step, at) => load(state, step, at),
    end() {
      state.asked.abort();
      state.coming?.abort();
      clearTimeout(state.timer);
      seen.disconnect();
      NARROW.removeEventListener("change", turned);
    },
  };
}

const rowHeight = () => (NARROW.matches ? HEIGHTS.narrow : HEIGHTS.wide);

/**
 * Shows another step; `at`, a row and column to go to, is given where somebody comes back to one.
 *
 * What is shown stays until the other step is there. Gives whether it is: not if yet another was asked for meanwhile.
 */
async function load(state, step, at) {
  state.coming?.abort();
  const coming = (state.coming = new AbortController());
  const place = at ?? { row: 0, column: 0 }, page = Math.floor(place.row / PAGE);
  const answer = await groupsOf(state.run, step, page, coming.signal).catch((error) => {
    if (!coming.signal.aborted) throw error;
  });
  if (coming.signal.aborted) return false;
  state.asked.abort();
  Object.assign(state, { asked: coming, coming: null, at: place, total: 0, columns: 0 });
  state.pages.clear();
  arrived(state, answer, page);
  state.at.row = Math.max(0, Math.min(state.at.row, state.total - 1));
  clear(state);
  requestAnimationFrame(() => { // once it is in the page, and after the router went to its top
    if (at && state.total) go(state, state.at.row, state.at.column);
    else state.element.scrollTop = 0;
    draw(state);
  });
  return true;
}

function groupsOf(run, step, page, signal) {
  return get(`runs/${encodeURIComponent(run)}/groups`, { step, offset: page * PAGE, limit: PAGE }, signal);
}

async function fetchPage(state, page) {
  if (state.pages.has(page)) return;
  state.pages.set(page, null);
  const { step, asked } = state;
  try {
    const answer = await groupsOf(state.run, step, page, asked.signal);
    if (!asked.signal.aborted) arrived(state, answer, page);
  } catch (error) {
    if (asked.signal.aborted) return;
    state.pages.delete(page);
    throw error;
  }
}

function arrived(state, answer, page) {
  state.pages.set(page, answer.groups);
  state.step = answer.step; // which, where the newest was asked for
  state.total = answer.total;
  state.canvas.style.height = `${state.total * rowHeight()}px`;
  state.element.setAttribute("aria-rowcount", state.total + 1);
  const widest = Math.max(0, ...answer.groups.map((group) => group.completions.length));
  if (widest > state.columns) drawHead(state, widest);
  state.loaded(answer);
  soon(state);
}

function drawHead(state, columns) {
  state.columns = columns;
  state.element.style.setProperty("--columns", columns);
  state.element.setAttribute("aria-colcount", columns + 1);
  put(state.head, h("span", { role: "columnheader", class: "rowhead" }, "Problem"),
    Array.from({ length: columns }, (_, index) => h("span", { role: "columnheader" }, index)));
}

function clear(state) {
  state.canvas.style.height = `${state.total * rowHeight()}px`;
  state.rows.clear();
  put(state.canvas);
}

function soon(state) {
  state.frame ||= requestAnimationFrame(() => { state.frame = 0; draw(state); });
}

function draw(state) {
  const height = rowHeight(), { scrollTop, clientHeight } = state.element;
  if (!clientHeight || !state.total) return;
  hint(state);
  const first = Math.max(0, Math.floor(scrollTop / height) - BEYOND);
  const last = Math.min(state.total - 1, Math.floor((scrollTop + clientHeight) / height) + BEYOND);
  for (const [row, element] of state.rows) {
    // The row that the keyboard is in stays: with it the focus would go.
    if ((row < first || row > last) && row !== state.at.row) {
      element.remove();
      state.rows.delete(row);
    }
  }
  let room = FILLED, left = 0;
  for (const row of [state.at.row, ...Array.from({ length: last - first + 1 }, (_, place) => first + place)]) {
    const group = state.pages.get(Math.floor(row / PAGE))?.[row % PAGE];
    const filled = group !== undefined && room > 0;
    const old = state.rows.get(row);
    if (group && !filled && !old?.classList.contains("filled")) left += 1;
    if (old && (!filled || old.classList.contains("filled"))) continue;
    putRow(state, row, filled ? group : undefined, old);
    room -= filled;
  }
  if (left) soon(state);
  state.inSight = [first - AHEAD, last + AHEAD];
  state.timer ||= setTimeout(() => { state.timer = 0; fetchInSight(state); }, PAUSE);
}

/** Says that there are more columns than are in sight, and shades the edge that they are behind. */
function hint({ element, around, sideways, columns }) {
  const { scrollLeft, clientWidth, scrollWidth } = element;
  around.classList.toggle("more", scrollLeft + clientWidth < scrollWidth - 1);
  sideways.hidden = scrollWidth <= clientWidth + 1;
  write(sideways, `${number(columns)} completions in a row: scroll sideways to see all of them.`);
}

// Pages that a fast scroll has left behind by then are not asked for.
function fetchInSight(state) {
  const [first, last] = state.inSight.map((row) => Math.floor(Math.max(0, Math.min(state.total - 1, row)) / PAGE));
  for (let page = first; page <= last; page++) fetchPage(state, page).catch((error) => say(error.message, "error"));
}

/** Makes a row, in the place of the one that stood for it until its numbers were there. */
function putRow(state, row, group, old) {
  const looks = { class: group ? "grouprow filled" : "grouprow", role: "row", "aria-rowindex": row + 2, "data-row": row };
  const element = h("div", looks,
    group ? cells(state, group) : h("div", { class: "rowhead", role: "rowheader" },
      h("a", { href: address(state.run, { step: state.step, group: row }), tabindex: "-1", "data-column": 0 },
        h("span", { class: "note" }, `Group ${row}`))));
  element.style.top = `${row * rowHeight()}px`;
  state.rows.set(row, element);
  const held = old?.contains(document.activeElement);
  if (old) old.replaceWith(element);
  else state.canvas.append(element);
  if (row === state.at.row) mark(state, element, state.at.column);
  if (held) anchor(element, state.at.column).focus({ preventScroll: true });
}

function cells(state, group) {
  const to = (query) => address(state.run, { step: state.step, group: group.group_index }, query);
  return [
    h("div", { class: "rowhead", role: "rowheader" },
      h("a", { href: to({}), tabindex: "-1", "data-column": 0 },
        h("span", { class: "prompt" }, h("b", {}, `${group.group_index} `),
          group.prompt === "" ? h("span", { class: "note" }, "(empty prompt)") : written(group.prompt)),
        h("span", { class: "facts" }, `mean ${number(group.mean)}, deviation ${number(group.deviation)} `,
          signalMark(kindOfGroup(group.signal, group.completions))))),
    group.completions.map((completion, place) => h("div", { role: "gridcell", class: "cell" },
      tinted(h("a", {
        href: to({ c: completion.index }), tabindex: "-1", "data-column": place + 1,
        "aria-label": inWords(completion), class: `tint${completion.invalid ? " invalid" : ""}`,
      }, h("span", {}, completion.invalid ? "invalid" : short(completion.advantage)),
      h("span", { class: "tick" }, completion.correct ? "\u2713" : "")), tint(completion.advantage, FULL)))),
  ];
}

const short = kept((advantage) => signed(advantage, 2));

const anchor = (row, column) => {
  const found = [...row.querySelectorAll("a")];
  return found[Math.min(column, found.length - 1)];
};

function mark(state, row, column) {
  for (const other of state.canvas.querySelectorAll('a[tabindex="0"]')) other.tabIndex = -1;
  const found = anchor(row, column);
  if (found) found.tabIndex = 0;
  return found;
}

function focused(state, target) {
  const link = target.closest("a[data-column]");
  if (!link) return;
  const row = Number(link.closest("[data-row]").dataset.row);
  state.at = { row, column: Number(link.dataset.column) };
  mark(state, state.rows.get(row), state.at.column);
  note({ at: `${row}.${state.at.column}` });
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
  const inSight = Math.max(1, Math.floor(state.element.clientHeight / rowHeight()) - 1);
  const [row, column] = way(state.at, state, inSight, event.ctrlKey);
  go(state, Math.max(0, Math.min(state.total - 1, row)), Math.max(0, Math.min(state.columns, column)));
}

function go(state, row, column) {
  state.at = { row, column };
  reveal(state, row);
  draw(state);
  const link = mark(state, state.rows.get(row), column);
  link?.focus({ preventScroll: true });
  link?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function reveal(state, row) {
  const height = rowHeight(), { element } = state, top = row * height;
  const room = element.clientHeight - state.head.offsetHeight;
  if (top < element.scrollTop) element.scrollTop = top;
  else if (top + height > element.scrollTop + room) element.scrollTop = top + height - room;
}
