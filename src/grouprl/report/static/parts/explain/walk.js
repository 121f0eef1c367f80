// A page in stages: a button reveals the next one, a list at the side says where the reader is and leads back. The
// arrow keys do the same wherever they are not needed for something else.
import { h, put } from "../dom.js";

/**
 * Stages of {key, title, happens, why, watch, equation?, body}: `body()` gives the elements of a stage when it is shown first;
 * `next` names it on the button before it, where its title does not. options: start: key of the last stage to show at once; onreveal(key). Gives
 * {element, scroll(), end()}: scroll goes to the last stage shown, once the page is there.
 */
export function walkThrough(list, { start, onreveal }) {
  const walk = { list, shown: 0, onreveal, said: h("p", { class: "unseen", "aria-live": "polite" }) };
  walk.progress = h("ol", { class: "progress" });
  walk.column = h("div", { class: "stages" });
  const until = Math.max(0, list.findIndex((stage) => stage.key === start));
  for (let index = 0; index <= until; index += 1) reveal(walk, index, false);
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

function reveal(walk, index, byUser) {
  const stage = walk.list[index];
  walk.column.querySelector(".next")?.remove();
  walk.column.append(section(walk, stage, index));
  walk.shown = index + 1;
  drawProgress(walk);
  if (!byUser) return;
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
    h("details", { class: "note code" }, h("summary", {}, `The code: ${stage.code.name}, ${stage.code.file}, line ${stage.code.line}`),
      h("pre", { tabindex: "0" }, stage.code.text)),
    after && h("p", { class: "next" }, h("button", { type: "button", class: "main", onclick: () => reveal(walk, index + 1, true) },
      `Next: ${after.next ?? after.title[0].toLowerCase() + after.title.slice(1)}`)));
}

function drawProgress(walk) {
  put(walk.progress, walk.list.map((stage, index) => {
    const shown = index < walk.shown;
    const current = index === walk.shown - 1 ? "step" : null;
    return h("li", { class: shown ? "shown" : null },
      h("button", { type: "button", "aria-current": current, onclick: () => jump(walk, index) },
        h("span", { class: "count" }, String(index + 1)), h("span", { class: "name" }, stage.title),
        shown ? null : h("span", { class: "unseen" }, " (not shown yet)")));
  }));
}

/** To a stage, with all that lead up to it. */
function jump(walk, index) {
  for (let next = walk.shown; next <= index; next += 1) reveal(walk, next, next === index);
  go(walk, index);
}

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
