// All runs: how each is doing, what can be done with it, and which are to be compared.
import { get, Gone } from "../parts/api.js";
import { h, put, say } from "../parts/dom.js";
import { startDialog } from "../parts/launch.js";
import { write } from "../parts/legend.js";
import { LOST } from "../parts/run/head.js";
import { COLUMNS, row } from "../parts/run/row.js";
import { visible } from "../parts/text.js";

const EVERY = 3000; // milliseconds
const PAUSE = 20; // times as long as an answer took: hundreds of runs should not cost the training its processor
const LAST = Number.NEGATIVE_INFINITY;
const ORDERS = {
  "newest first": (run) => [run.status === "running" ? 1 : 0, run.modified],
  "highest reward": (run) => [run.reward ?? LAST],
  "highest accuracy": (run) => [run.accuracy ?? LAST],
  "best held out": (run) => [run.greedy_after ?? LAST],
  "fastest": (run) => [run.tokens_per_second ?? LAST],
  "name": null,
};
const chosen = new Set(); // kept while the page is open, whatever is looked at between

/** Shows the table of runs and keeps it up to date; gives what ends that. */
export async function render(root) {
  const [{ runs }, { root: folder }] = await Promise.all([get("runs"), get("session")]);
  const page = { runs, rows: new Map(), order: "newest first", text: "" };
  const names = () => page.runs.map((run) => run.name);
  const table = shownTable(), none = h("p", { class: "card empty" }), wrong = h("p", { class: "error", role: "status" });
  const compare = h("button", { type: "button", onclick: () => { location.hash = address(page.runs); } });
  const changed = () => {
    const count = comparable(page.runs).length;
    write(compare, count ? `Compare ${count} run${count === 1 ? "" : "s"}` : "Compare");
    compare.disabled = count < 1;
  };
  const start = () => startDialog(names()).catch((error) => say(error.message, "error"));
  const tools = h("div", { class: "row tools" }, h("button", { type: "button", class: "main", onclick: start }, "Start a run"),
    compare, search(page, () => arrange(page, table, none)), order(page, () => arrange(page, table, none)));
  put(root, h("h1", {}, "Runs"), h("p", { class: "note" }, visible(folder)), tools, wrong, none, table.element);
  const show = (found) => {
    page.runs = found;
    for (const run of found) {
      if (page.rows.has(run.id)) page.rows.get(run.id).show(run);
      else page.rows.set(run.id, row(run, chosen, changed, names));
    }
    const ids = found.map((run) => run.id).sort().join("\n");
    if (ids !== page.ids) arrange(page, table, none);
    page.ids = ids;
    changed();
  };
  show(runs);
  return repeated(show, wrong);
}

/** Asks for the runs again and again while somebody looks. */
function repeated(show, wrong) {
  let timer = 0, ended = false;
  const turn = async () => {
    const asked = performance.now();
    const found = document.hidden ? null : await get("runs").catch((error) => void write(wrong, error instanceof Gone ? LOST : error.message));
    if (ended) return;
    if (found) {
      write(wrong, "");
      show(found.runs);
    }
    clearTimeout(timer);
    timer = setTimeout(turn, Math.max(EVERY, PAUSE * (performance.now() - asked)));
  };
  timer = setTimeout(turn, EVERY);
  document.addEventListener("visibilitychange", turn);
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", turn);
  };
}

/** Puts the rows that are wanted in the order that is wanted. Only new runs and the reader's own choice move rows. */
function arrange(page, table, none) {
  const words = page.text.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (run) => [run.id, run.algorithm, run.model, run.task, run.status].join(" ").toLowerCase();
  const wanted = page.runs.filter((run) => words.every((word) => text(run).includes(word)));
  const of = ORDERS[page.order];
  const ordered = wanted.toSorted((a, b) => (of ? above(of(a), of(b)) : a.id.localeCompare(b.id)));
  place(table.body, ordered.map((run) => page.rows.get(run.id).element));
  table.element.hidden = !ordered.length;
  none.hidden = ordered.length > 0;
  const first = ["No run yet. Start one here, or in a terminal with ", h("code", {}, "grouprl train demo"), "."];
  put(none, page.runs.length ? "No run matches." : first);
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
  const unnamed = (at) => h("span", { class: "unseen" }, at ? "What to do" : "Choose");
  const heads = COLUMNS.map((name, at) =>
    h("th", { scope: "col", role: "columnheader", class: `of-${at}` }, name || unnamed(at)));
  const element = h("table", { class: "runs-table card", role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body);
  return { element, body };
}

function search(page, changed) {
  const hint = "name, algorithm, model, task";
  const input = h("input", { type: "search", placeholder: hint, "aria-label": "Find runs", spellcheck: "false" });
  input.addEventListener("input", () => {
    page.text = input.value;
    changed();
  });
  return input;
}

function order(page, changed) {
  const options = Object.keys(ORDERS).map((name) => h("option", { value: name }, name));
  const select = h("select", { "aria-label": "Order of the runs" }, options);
  select.addEventListener("change", () => {
    page.order = select.value;
    changed();
  });
  return select;
}

function comparable(runs) {
  return runs.filter((run) => chosen.has(run.id) && run.status !== "broken");
}

function address(runs) {
  // Encoded twice: the page's address is decoded whole before it is split at commas, which a name may have too.
  return `#/compare/${comparable(runs).map((run) => encodeURIComponent(encodeURIComponent(run.id))).join(",")}`;
}
