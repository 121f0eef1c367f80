// Which metrics are drawn.
import { h, put } from "../dom.js";
import { titleOf } from "./card.js";

/** A folded list of boxes; `offered()` gives the names, `chosen` is the set that changes, `changed()` tells so. */
export function chooser(title, offered, chosen, find, changed) {
  const boxes = h("div", { class: "boxes" });
  const element = h("details", { class: "card folded" }, h("summary", {}, title), boxes);
  let known = "";
  const show = () => {
    const names = offered();
    if (names.join("\n") === known) return;
    known = names.join("\n");
    put(boxes, names.map((name) => box(name, chosen, find, changed)));
  };
  return { element, show };
}

function box(name, chosen, find, changed) {
  const input = h("input", { type: "checkbox", checked: chosen.has(name), onchange: () => {
    if (input.checked) chosen.add(name);
    else chosen.delete(name);
    changed();
  } });
  return h("label", {}, input, titleOf(name, find(name)));
}
