// The pages and their addresses: #/, #/runs/ID, #/runs/ID/groups/STEP/GROUP, #/compare/ID,ID, #/comparison/NAME,
// #/data/NAME, #/step, #/group, #/ppo.
import { Gone, home, linked, links, live, Refused } from "./parts/api.js";
import { kept } from "./parts/address.js";
import { h, put, select } from "./parts/dom.js";
import { named, trouble } from "./parts/text.js";

// Of each page: what its address looks like, the file that shows it, and its title. `render(page, parameters, query)`
// fills the element and gives a function that ends what it began, or nothing.
const PAGES = [
  [/^\/$/, [], "runs", () => "Runs"],
  [/^\/runs\/([^/]+)$/, ["run"], "run", ({ run }) => named(run)],
  [/^\/runs\/([^/]+)\/groups(?:\/(\d+))?(?:\/(\d+))?$/, ["run", "step", "group"], "groups", ({ run, step, group }) =>
    (group === undefined ? `Groups of ${named(run)}` : `Group ${group} of step ${step}, ${named(run)}`)],
  [/^\/compare(?:\/([^/]+))?$/, ["runs"], "compare", ({ runs }) => ["Compare", runs?.split(",").map(decoded).map(named).join(", ")].filter(Boolean).join(" ")],
  [/^\/comparison\/([^/]+)$/, ["comparison"], "compare", ({ comparison }) => `Comparison ${named(comparison)}`],
  [/^\/data\/([^/]+)$/, ["check"], "data", ({ check }) => `Data of ${named(check)}`],
  [/^\/step$/, [], "step", (_, query) => ["GRPO step by step", ...query.getAll("run").map(named)].join(", ")],
  [/^\/group$/, [], "group", () => "One group"],
  [/^\/ppo$/, [], "ppo", () => "PPO and GRPO"],
];
const LINKS = links ?? [["/", "Runs"], ["/step", "GRPO step by step"], ["/group", "One group"], ["/ppo", "PPO and GRPO"]];
const MAIN = document.getElementById("page");

const THEMES = [["", "Theme: system"], ["light", "Theme: light"], ["dark", "Theme: dark"]];
const theme = select(THEMES, kept("theme"), { "aria-label": "Theme", class: "theme", onchange: () => themed(theme.value) });
document.querySelector(".top").append(theme);
themed(kept("theme"));

/** Shows light, dark, or what the system has, now and when this browser comes again. */
function themed(name) {
  kept("theme", name);
  shade(name);
}

function shade(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  document.dispatchEvent(new Event("theme"));
}

addEventListener("beforeprint", () => shade("light")); // paper is white
addEventListener("afterprint", () => shade(kept("theme")));

let leave = () => {};
let shown = 0;
let tries = 0; // that failed to fetch the file of a page

async function show() {
  const turn = ++shown;
  const [path, query = ""] = (ours() && location.hash !== "#/" ? location.hash.slice(1) : home).split("?");
  leave();
  leave = () => {};
  put(document.getElementById("nav"), LINKS.map(([to, text]) =>
    h("a", { href: `#${to}`, "aria-current": isWithin(path, to) ? "page" : null }, text)));
  try {
    const found = asked(path, new URLSearchParams(query));
    call(found?.title ?? "No such page");
    if (!found) return void put(MAIN, h("h1", {}, "No such page"), back());
    const page = h("div", { class: `page ${found.file}` });
    const { render } = await loaded(found.file);
    const end = await render(page, found.parameters, found.query);
    if (turn !== shown) return void end?.();
    leave = end ?? leave;
    put(MAIN, page);
  } catch (error) {
    if (turn === shown) fail(error);
  }
}

/** The page of a path: its file, title and parameters; undefined where there is none. */
function asked(path, query) {
  const page = PAGES.find(([form]) => form.test(path));
  if (!page) return undefined;
  const [form, names, file, title] = page;
  const parts = form.exec(path).slice(1).map((part) => (part === undefined ? undefined : decoded(part)));
  const parameters = Object.fromEntries(names.map((name, place) => [name, parts[place]]));
  return { file, parameters, query, title: title(parameters, query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    throw new Refused(`The address has an invalid part, ${part}: write % as %25.`);
  }
}

/**
 * The file of a page. A browser keeps an import that failed for as long as the page is open, so another try has another
 * address; where that fails too and the lab answers, it is a file of that file, and the page has to be loaded anew.
 */
async function loaded(name) {
  try {
    return await import(tries ? `./pages/${name}.js?try=${tries}` : `./pages/${name}.js`);
  } catch (error) {
    if (!(error instanceof TypeError && /import|module/i.test(error.message))) throw error;
    if (tries++ && await fetch("static/app.js").then(({ ok }) => ok, () => false)) location.reload();
    throw new Gone();
  }
}

function fail(error) {
  call("This page could not be shown");
  put(MAIN, h("h1", {}, "This page could not be shown"), trouble(error, show), back());
  // A sentence for the reader has been read; anything else is a mistake of the page.
  if (!(error instanceof Refused || error instanceof Gone)) throw error;
}

function back() {
  return h("p", {}, h("a", { href: "#/" }, linked ? "All runs" : "The first page"));
}

function call(title) {
  document.title = `${title} \u00b7 GroupRL${live ? " lab" : ""}`;
}

/** Whether what stands after the # is an address of this page, rather than of something on it. */
function ours() {
  return location.hash.startsWith("#/");
}

function isWithin(path, to) {
  if (!linked) return to === LINKS.map(([link]) => link).findLast((link) => path.startsWith(link));
  return to === "/" ? path === "/" || path.startsWith("/runs") || path.startsWith("/compare") : path === to;
}

addEventListener("hashchange", async () => {
  if (location.hash && !ours()) return;
  await show();
  MAIN.focus({ preventScroll: true });
  scrollTo(0, 0);
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // or the address of the page would go
  MAIN.focus();
});
show();
