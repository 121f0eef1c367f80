// The pages and their addresses: #/, #/runs/ID, #/runs/ID/groups/STEP/GROUP, #/compare/ID,ID, #/step, #/rollouts, #/ppo.
import { Gone, Refused } from "./parts/api.js";
import { h, put } from "./parts/dom.js";
import { visible } from "./parts/text.js";
import { trouble } from "./parts/trouble.js";

// Of each page: what its address looks like, the file that shows it, and its title. `render(page, parameters, query)`
// fills the element and gives a function that ends what it began, or nothing.
const PAGES = [
  [/^\/$/, [], "runs", () => "Runs"],
  [/^\/runs\/([^/]+)$/, ["run"], "run", ({ run }) => named(run)],
  [/^\/runs\/([^/]+)\/groups(?:\/(\d+))?(?:\/(\d+))?$/, ["run", "step", "group"], "groups", groupsTitle],
  [/^\/compare(?:\/([^/]+))?$/, ["runs"], "compare", compareTitle],
  [/^\/step$/, [], "step", (_, query) => ["GRPO step by step", ...runOf(query)].join(", ")],
  [/^\/rollouts$/, [], "rollouts", () => "K rollouts"],
  [/^\/ppo$/, [], "ppo", () => "PPO and GRPO"],
];
const LINKS = [["/", "Runs"], ["/step", "GRPO step by step"], ["/rollouts", "K rollouts"], ["/ppo", "PPO and GRPO"]];
const MAIN = document.getElementById("page");

let leave = () => {};
let shown = 0;

async function show() {
  const turn = ++shown;
  const [path, query = ""] = (ours() ? location.hash.slice(1) : "/").split("?");
  leave();
  leave = () => {};
  put(document.getElementById("nav"), LINKS.map(([to, text]) =>
    h("a", { href: `#${to}`, "aria-current": isWithin(path, to) ? "page" : null }, text)));
  try {
    const found = asked(path, new URLSearchParams(query));
    call(found?.title ?? "No such page");
    if (!found) return void put(MAIN, h("h1", {}, "No such page"), h("p", {}, h("a", { href: "#/" }, "All runs")));
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
    throw new Refused(`The address has a damaged part, ${part}: in an address % has to be written as %25.`);
  }
}

/** The file of a page. A browser calls it a TypeError when it could not be fetched, and asks again the next time. */
function loaded(name) {
  return import(`./pages/${name}.js`).catch((error) => {
    throw error instanceof TypeError && /import|module/i.test(error.message) ? new Gone() : error;
  });
}

function fail(error) {
  call("This page could not be shown");
  put(MAIN, h("h1", {}, "This page could not be shown"), trouble(error, show), h("p", {}, h("a", { href: "#/" }, "All runs")));
  // A sentence for the reader has been read; anything else is a mistake of the page.
  if (!(error instanceof Refused || error instanceof Gone)) throw error;
}

function call(title) {
  document.title = `${title} \u00b7 GroupRL lab`;
}

function named(run) {
  return visible(run.replaceAll("~", "/"));
}

function groupsTitle({ run, step, group }) {
  return group === undefined ? `Groups of ${named(run)}` : `Group ${group} of step ${step}, ${named(run)}`;
}

function compareTitle({ runs = "" }) {
  return runs ? `Compare ${runs.split(",").map(decoded).map(named).join(", ")}` : "Compare";
}

function runOf(query) {
  return query.get("run") ? [named(query.get("run"))] : [];
}

/** Whether what stands after the # is an address of this page, rather than of something on it. */
function ours() {
  return location.hash.startsWith("#/");
}

function isWithin(path, to) {
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
