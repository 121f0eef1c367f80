// The pages and their addresses: #/, #/runs/ID, #/runs/ID/groups/STEP/GROUP, #/compare/ID,ID, #/step, #/rollouts, #/ppo.
import { h, put } from "./parts/dom.js";

// Of each page: what its address looks like, and the file that shows it. `render(page, parameters, query)` fills the
// element and gives a function that ends what it began, or nothing.
const PAGES = [
  [/^\/$/, [], "runs"],
  [/^\/runs\/([^/]+)$/, ["run"], "run"],
  [/^\/runs\/([^/]+)\/groups(?:\/(\d+))?(?:\/(\d+))?$/, ["run", "step", "group"], "groups"],
  [/^\/compare(?:\/([^/]+))?$/, ["runs"], "compare"],
  [/^\/step$/, [], "step"],
  [/^\/rollouts$/, [], "rollouts"],
  [/^\/ppo$/, [], "ppo"],
];
const LINKS = [["/", "Runs"], ["/step", "GRPO step by step"], ["/rollouts", "K rollouts"], ["/ppo", "PPO and GRPO"]];

let leave = () => {};
let shown = 0;

async function show() {
  const turn = ++shown;
  const [path, query = ""] = (location.hash.slice(1) || "/").split("?");
  const root = document.getElementById("page");
  leave();
  leave = () => {};
  put(document.getElementById("nav"), LINKS.map(([to, text]) =>
    h("a", { href: `#${to}`, "aria-current": isWithin(path, to) ? "page" : null }, text)));
  const [, names, file] = PAGES.find(([form]) => form.test(path)) ?? [];
  if (!file) return void put(root, h("h1", {}, "No such page"), h("p", {}, h("a", { href: "#/" }, "All runs")));
  const [form] = PAGES.find((page) => page[2] === file && page[0].test(path));
  const found = form.exec(path).slice(1).map((part) => (part === undefined ? undefined : decodeURIComponent(part)));
  const page = h("div", { class: `page ${file}` });
  try {
    const { render } = await import(`./pages/${file}.js`);
    const end = await render(page, Object.fromEntries(names.map((name, i) => [name, found[i]])), new URLSearchParams(query));
    if (turn !== shown) return void end?.();
    leave = end ?? leave;
    put(root, page);
  } catch (error) {
    if (turn === shown) put(root, h("h1", {}, "This page could not be shown"), h("p", { class: "error" }, error.message));
    throw error;
  }
}

function isWithin(path, to) {
  return to === "/" ? path === "/" || path.startsWith("/runs") || path.startsWith("/compare") : path === to;
}

addEventListener("hashchange", async () => {
  await show();
  document.getElementById("page").focus({ preventScroll: true });
  scrollTo(0, 0);
});
show();
