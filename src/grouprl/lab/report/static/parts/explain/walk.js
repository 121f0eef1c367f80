// A page in stages: a button reveals the next one, a list at the side says where the reader is and leads back. The
// arrow keys do the same wherever they are not needed for something else. All stages are made at once, because a print has
// every stage; the screen hides those to come, but gives them their width, which their plots are drawn for.
import { h, put } from "../dom.js";

/**
 * Stages of {key, title, happens, why, watch, equation?, questions?, body}: `body()` gives the elements of a stage;
 * `next` names it on the button before it, where its title does not. options: start: key of the last stage to show at once; onreveal(key). Gives
 * {element, scroll(), end()}: scroll goes to the last stage shown, once the page is there.
 */
export function walkThrough(list, { start, onreveal }) {
  const walk = { list, onreveal, said: h("p", { class: "unseen", "aria-live": "polite" }) };
  walk.progress = h("ol", { class: "progress" });
  walk.column = h("div", { class: "stages" }, list.map((stage, index) => section(walk, stage, index)));
  const until = Math.max(0, list.findIndex((stage) => stage.key === start));
  showUntil(walk, until);
  const onkey = (event) => steer(walk, event);
  document.addEventListener("keydown", onkey);
  const keys = h("p", { class: "note keys" }, "Keys: \u2192 next, \u2190 back");
  const side = h("nav", { class: "side", "aria-label": "Stages" }, walk.progress, keys);
  return {
    element: h("div", { class: "walk" }, side, walk.column, walk.said),
    scroll: () => until > 0 && requestAnimationFrame(() => go(walk, until)),
    end: () => document.removeEventListener("keydown", onkey),
  };
}

/** Shows the stages up to this one, the last of them with the button to the next. */
function showUntil(walk, index) {
  walk.shown = index + 1;
  [...walk.column.children].forEach((stage, place) => {
    stage.classList.toggle("later", place > index);
    stage.querySelector(".next")?.toggleAttribute("hidden", place < index);
  });
  put(walk.progress, walk.list.map((stage, place) => {
    const shown = place <= index;
    return h("li", { class: shown ? "shown" : null },
      h("button", { type: "button", "aria-current": place === index ? "step" : null, onclick: () => jump(walk, place) },
        h("span", { class: "count" }, String(place + 1)), h("span", { class: "name" }, stage.title),
        shown ? null : h("span", { class: "unseen" }, " (not shown yet)")));
  }));
}

function reveal(walk, index) {
  const stage = walk.list[index];
  showUntil(walk, index);
  walk.onreveal(stage.key);
  put(walk.said, `Stage ${index + 1} of ${walk.list.length}: ${stage.title}. ${stage.happens}`);
  go(walk, index);
}

function section(walk, stage, index) {
  const after = walk.list[index + 1], sentence = (name, words) => h("div", {}, h("dt", {}, name), h("dd", {}, words));
  return h("section", { class: "stage card", id: `stage-${stage.key}`, "aria-labelledby": `title-${stage.key}` },
    h("h2", { id: `title-${stage.key}`, tabindex: "-1" }, h("span", { class: "count" }, String(index + 1)), stage.title),
    h("dl", { class: "sentences" },
      sentence("What happens", stage.happens), sentence("Why", stage.why), sentence("Watch", stage.watch)),
    stage.equation,
    stage.body(),
    stage.questions,
    h("details", { class: "note code" }, h("summary", {}, `The code: ${stage.code.name}, ${stage.code.file}, line ${stage.code.line}`),
      h("pre", { tabindex: "0" }, stage.code.text)),
    after && h("p", { class: "next" }, h("button", { type: "button", class: "main", onclick: () => reveal(walk, index + 1) },
      `Next: ${after.next ?? after.title[0].toLowerCase() + after.title.slice(1)}`)));
}

/** To a stage, with all that lead up to it. */
const jump = (walk, index) => (index < walk.shown ? go : reveal)(walk, index);

function go(walk, index) {
  const title = document.getElementById(`title-${walk.list[index].key}`);
  title?.focus({ preventScroll: true });
  title?.closest("section").scrollIntoView({ block: "start" });
}

function steer(walk, event) {
  const plain = !event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (!plain || event.target.closest("input, select, textarea, [role=slider], .scroll")) return;
  const here = walk.list.findIndex((stage) => document.getElementById(`stage-${stage.key}`)?.contains(document.activeElement));
  const current = here < 0 ? walk.shown - 1 : here;
  if (event.key === "ArrowRight" && current + 1 < walk.list.length) jump(walk, current + 1);
  else if (event.key === "ArrowLeft" && current > 0) jump(walk, current - 1);
  else return;
  event.preventDefault();
}

/** Words of stages.json with what they have in braces filled in: a text, or each text of an object. */
export function filled(words, given) {
  if (typeof words === "string") return words.replace(/\{(\w+)\}/g, (whole, name) => given[name] ?? whole);
  return words && typeof words === "object" ? Object.fromEntries(Object.entries(words).map(([name, one]) => [name, filled(one, given)])) : words;
}
