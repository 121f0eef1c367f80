// The completions of one group, side by side or one below the other; each opens into its tokens.
import { h, put } from "../dom.js";
import { choices, note } from "../address.js";
import { number, signed, trouble, written } from "../text.js";
import { advantageMark, correctMark, stopWords } from "./marks.js";
import { tokenView } from "./tokens.js";

/** The section; `given` are the choices of the address: layout, c (completion), view and t (token). */
export function completionCards(run, place, group, given) {
  let open = null;
  const cards = group.completions.map((completion) => card(completion, (one) => toggle(one, { view: choices().view })));
  const list = h("div", { class: `cards ${given.layout === "list" ? "list" : "beside"}` },
    cards.map((one) => [one.element, one.tokens]));

  async function toggle(one, chosen) {
    const again = open === one;
    close();
    if (again) return note({ c: null, t: null });
    open = one;
    mark(one, true);
    note({ c: one.index, t: chosen.t });
    await fill(one, chosen);
  }

  async function fill(one, chosen) {
    put(one.tokens, h("p", { class: "note" }, "Loading."));
    try {
      const shown = await tokenView(run, { ...place, completion: one.index }, chosen);
      if (open === one) put(one.tokens, shown);
    } catch (error) {
      if (open === one) put(one.tokens, trouble(error, () => fill(one, chosen)));
    }
  }

  function close() {
    if (!open) return;
    mark(open, false);
    put(open.tokens);
    open = null;
  }

  const chosen = cards.find((one) => String(one.index) === given.c);
  return {
    element: h("section", { "aria-labelledby": "completions-title" },
      h("div", { class: "row heading" }, h("h2", { id: "completions-title" }, `${number(cards.length)} completions`),
        layoutChoice(list, given.layout)), list),
    async open() {
      if (!chosen) return;
      await toggle(chosen, given);
      chosen.element.scrollIntoView({ block: "start" });
    },
  };
}

function mark(one, open) {
  one.element.classList.toggle("open", open);
  one.button.setAttribute("aria-expanded", String(open));
  one.tokens.hidden = !open;
}

function card(completion, toggle) {
  const button = h("button", { type: "button", "aria-expanded": "false", onclick: () => toggle(one) }, "Tokens");
  const element = h("article", { class: `card completion${completion.invalid_reason === null ? "" : " failed"}`,
    "aria-label": `Completion ${completion.index}`, id: `completion-${completion.index}` },
  heading(completion, button), components(completion),
  h("div", { class: "written", tabindex: "0", role: "region", "aria-label": `Text of completion ${completion.index}` },
    completion.text === "" ? h("span", { class: "note" }, "(no text)") : written(completion.text)));
  const tokens = h("section", { class: "card opened", "aria-label": `Tokens of completion ${completion.index}`, hidden: true });
  const one = { element, button, tokens, index: completion.index };
  return one;
}

function layoutChoice(list, given) {
  const buttons = [["beside", "Side by side"], ["list", "List"]].map(([name, label]) =>
    h("button", { type: "button", "aria-pressed": String((given === "list" ? "list" : "beside") === name),
      onclick: (event) => {
        list.className = `cards ${name}`;
        for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
        note({ layout: name === "list" ? name : null });
      } }, label));
  return h("div", { class: "row", role: "group", "aria-label": "Layout" }, buttons);
}

function heading(completion, button) {
  return h("header", { class: "row" },
    h("h3", {}, `Completion ${completion.index}`), advantageMark(completion.advantage), correctMark(completion.correct),
    h("span", { class: "note" }, `${number(completion.length)} tokens, ${stopWords(completion.stop_reason)}`), button);
}

/** Reward = component x weight + ...; or why there is none. */
function components(completion) {
  if (completion.invalid_reason !== null) {
    return h("p", { class: "bad" }, "Invalid reward: ", written(completion.invalid_reason));
  }
  return h("table", { class: "components" },
    h("tbody", {}, Object.entries(completion.components).map(([name, value]) => {
      const weight = completion.weights[name];
      return h("tr", {}, h("td", {}, written(name)),
        h("td", { class: "number" }, value === null ? "does not apply" : times(value, weight)));
    })),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "reward"),
      h("td", { class: "number" }, h("b", {}, number(completion.reward))))),
    stepRewards(completion.step_rewards));
}

// A run that was recorded without its weights has none of a task's own rewards.
function times(value, weight) {
  if (weight !== null) return `${number(value)} \u00d7 ${number(weight)}`;
  return [`${number(value)} `, h("span", { class: "note" }, "\u00d7 the task's weight")];
}

function stepRewards(pairs) {
  if (!pairs?.length) return null;
  return h("tbody", {}, pairs.map(([end, reward], place) =>
    h("tr", {}, h("td", {}, `step ${place + 1}, to token ${end}`), h("td", { class: "number" }, signed(reward)))));
}
