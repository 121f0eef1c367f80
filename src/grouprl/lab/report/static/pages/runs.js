// All runs: how each is doing, what can be done with it, and which are to be compared.
import { comparing, get, live, ofRun } from "../parts/api.js";
import { h, memberBox, put, refresh, s, say, select, toggle, write } from "../parts/dom.js";
import { actions, startDialog } from "../parts/launch.js";
import { keptOf, mark, progress, roughPhase } from "../parts/run/head.js";
import { counted, fixed, named, number, share, time, visible } from "../parts/text.js";
import { polled } from "../parts/view.js";

const EVERY = 3000; // milliseconds
const COLUMNS = ["", "Run", "Status", "Steps", "Reward", "Accuracy", "Held out, before → after", "Tokens/s", "Time", ""];
const LAST = Number.NEGATIVE_INFINITY;
const ORDERS = {
  "newest first": (run) => [run.status === "running" ? 1 : 0, run.modified],
  "highest reward": (run) => [run.reward ?? LAST],
  "highest accuracy": (run) => [run.accuracy ?? LAST],
  "best held out": (run) => [run.greedy_after ?? run.reward_after ?? LAST],
  "fastest": (run) => [run.tokens_per_second ?? LAST],
  "name": null,
};
const chosen = new Set(); // kept while the page is open, whatever is looked at between

/** Shows the table of runs and keeps it up to date; gives what ends that. */
export async function render(root) {
  const [{ runs }, { root: folder }] = await Promise.all([get("runs"), get("session")]);
  const page = { runs, rows: new Map() };
  const names = () => page.runs.map((run) => run.name);
  const table = shownTable(), none = h("div", { class: "card empty" }), wrong = h("p", { class: "error", role: "status" });
  const comparable = () => page.runs.filter((run) => chosen.has(run.id) && run.status !== "broken").map(({ id }) => id);
  const compare = h("button", { type: "button", onclick: () => { location.hash = comparing(comparable()); } });
  const changed = () => {
    const count = comparable().length;
    write(compare, count ? `Compare ${counted(count, "run")}` : "Compare");
    compare.disabled = count < 1;
  };
  const start = () => startDialog(names()).catch((error) => say(error.message, "error"));
  const rearranged = () => arrange(page, table, none);
  page.search = h("input", { type: "search", placeholder: "Find by name, tag, note, algorithm, model or task", "aria-label": "Find runs", spellcheck: "false",
    oninput: rearranged });
  page.order = select(Object.keys(ORDERS).map((name) => [name, name]), null, { "aria-label": "Order of the runs", onchange: rearranged });
  page.choices = [compare, page.search, page.order, toggle(false, (on) => { page.archived = on; rearranged(); }, "Show archived")];
  const tools = h("div", { class: "row tools" }, live ? h("button", { type: "button", class: "main", onclick: start }, "Start a run") : null, page.choices);
  put(root, h("h1", {}, "Runs"), h("p", { class: "note" }, visible(folder)), tools, wrong, none, table.element);
  const show = ({ runs: found }) => {
    page.runs = found;
    for (const run of found) {
      if (!page.rows.has(run.id)) page.rows.set(run.id, row(run, changed, names));
      page.rows.get(run.id).show(run);
    }
    const ids = found.map((run) => [run.id, run.archived]).sort().join("\n");
    if (ids !== page.ids) rearranged();
    page.ids = ids;
    changed();
  };
  show({ runs });
  return polled(EVERY, () => get("runs"), show, wrong);
}

/** Puts the rows that are wanted in the order that is wanted. Only new runs and the reader's own choice move rows. */
function arrange(page, table, none) {
  const words = page.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (run) => [run.id, run.algorithm, run.model, run.task, run.status, run.tags, run.note].join(" ").toLowerCase();
  const wanted = page.runs.filter((run) => (page.archived || !run.archived) && words.every((word) => text(run).includes(word)));
  const of = ORDERS[page.order.value];
  const ordered = wanted.toSorted((a, b) => (of ? above(of(a), of(b)) : a.id.localeCompare(b.id)));
  place(table.body, ordered.map((run) => page.rows.get(run.id).element));
  table.element.hidden = !ordered.length;
  none.hidden = ordered.length > 0;
  for (const one of page.choices) one.hidden = !page.runs.length;
  put(none, page.runs.length ? "No run matches. “Show archived” includes archived runs." : first());
}

/** What a folder without runs says. */
function first() {
  const link = (to, text) => h("a", { href: `#/${to}` }, text);
  return [h("h2", {}, "No run yet"),
    h("p", {}, "Start one above: the recipe demo trains the built-in model to solve word problems, in about two minutes on a CPU. In a terminal, run ",
      h("code", {}, "grouprl train demo"), "."),
    h("p", {}, "These pages need no run: ", link("step", "GRPO step by step"), " follows one group from its prompt to the update, ",
      link("group", "One group"), " shows the advantages of any rewards, and ", link("ppo", "PPO and GRPO"), " compares the two algorithms and plans their memory.")];
}

function above(a, b) {
  const at = a.findIndex((value, place) => value !== b[place]);
  return at < 0 ? 0 : b[at] - a[at];
}

/** Puts children in this order, moving as few as it can: a row that is moved loses the focus. */
function place(body, elements) {
  const held = elements.find((element) => element.contains(document.activeElement));
  for (const element of [...body.children]) if (!elements.includes(element)) element.remove();
  const split = held ? elements.indexOf(held) : 0;
  if (!held) return body.append(...elements);
  held.before(...elements.slice(0, split));
  held.after(...elements.slice(split + 1));
}

function shownTable() {
  const body = h("tbody", { role: "rowgroup" });
  const unnamed = (at) => h("span", { class: "unseen" }, at ? "Actions" : "Choose");
  const heads = COLUMNS.map((name, at) =>
    h("th", { scope: "col", role: "columnheader", class: `of-${at}` }, name || unnamed(at)));
  const element = h("table", { class: "runs-table card", role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body);
  return { element, body };
}

// A run as a row, brought up to date in place so that nothing loses the focus or the selection.

/** The row; `show(run)` brings it up to date. The row calls `changed()` when the user chooses it or no longer does. */
function row(run, changed, names) {
  const box = memberBox(chosen, run.id, changed, { "aria-label": `Compare ${visible(run.name)}` });
  const status = mark(), steps = progress(), buttons = actions(names, (found) => show(found)), what = h("span", { class: "note" }), kept = h("span", {});
  const reward = withSpark("Reward"), accuracy = withSpark("Accuracy");
  const [held, speed, took] = [0, 1, 2].map(() => h("span", {}));
  const name = h("a", { href: `#/${ofRun(run.id)}` }, named(run.id));
  const cells = [box, [name, kept, what], status.element, steps.element, reward.element, accuracy.element, held, speed, took, live ? buttons.element : null];
  const element = h("tr", { role: "row" }, cells.map((inside, place) => cell(place, inside)));
  const show = (found) => {
    box.disabled = found.status === "broken";
    status.show(found.status);
    steps.show(found.step, found.steps, roughPhase(found));
    buttons.show(found);
    const parts = found.error ? [found.error] : [found.algorithm, found.model, found.task];
    write(what, parts.filter(Boolean).map(visible).join(" · "));
    refresh(kept, [found.tags, found.note], () => keptOf(found, (note) => h("span", { class: "note" }, visible(note.split("\n")[0]))));
    reward.show(fixed(found.reward, 3), found.sparks?.reward);
    accuracy.show(share(found.accuracy), found.sparks?.accuracy);
    write(held, found.measure === "reward" ? `reward ${fixed(found.reward_before, 3)} → ${fixed(found.reward_after, 3)}` : `${share(found.greedy_before)} → ${share(found.greedy_after)}`);
    write(speed, fixed(found.tokens_per_second, 0));
    write(took, time(found.seconds));
  };
  return { element, show };
}

function cell(place, inside) {
  const attributes = { "data-label": COLUMNS[place] || null, class: `of-${place}` };
  return place === 1 ? h("th", { ...attributes, scope: "row", role: "rowheader" }, inside) : h("td", { ...attributes, role: "cell" }, inside);
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

const WIDTH = 96, HEIGHT = 26, EDGE = 2; // of a small line without axes

/** A small line of values that skips gaps; null for fewer than two values. `label` names them. */
function spark(values, label) {
  const found = values.map((value, at) => [at, value]).filter(([, value]) => typeof value === "number");
  if (found.length < 2) return null;
  const heights = found.map(([, value]) => value);
  const low = Math.min(...heights), high = Math.max(...heights);
  const across = (at) => EDGE + (at / (values.length - 1)) * (WIDTH - 2 * EDGE);
  const up = (value) => HEIGHT - EDGE - (high > low ? (value - low) / (high - low) : 0.5) * (HEIGHT - 2 * EDGE);
  const points = found.map(([at, value]) => `${across(at).toFixed(1)},${up(value).toFixed(1)}`).join(" ");
  const [at, value] = found.at(-1);
  return s("svg", {
    class: "spark", role: "img", width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    "aria-label": `${label} from ${number(found[0][1])} to ${number(value)}, between ${number(low)} and ${number(high)}`,
  }, s("polyline", { points }), s("circle", { cx: across(at).toFixed(1), cy: up(value).toFixed(1), r: 2 }));
}
