// What went wrong, where it has to stay in sight.
import { Gone } from "./api.js";
import { h } from "./dom.js";
import { visible } from "./text.js";

/** The sentence of an error; where the lab gave no answer, with a button that tries again. */
export function trouble(error, again) {
  const button = error instanceof Gone ? h("p", {}, h("button", { type: "button", onclick: again }, "Try again")) : null;
  return h("div", { class: "trouble", role: "alert" }, h("p", { class: "error" }, visible(error.message)), button);
}
