// Starting, stopping, resuming and forking runs: dialogs that keep what was typed until it was accepted.
import { get, ofRun, post } from "./api.js";
import { field, h, options, put, say, select, write } from "./dom.js";
import { keepDialog } from "./keep.js";
import { visible, written } from "./text.js";

const ERROR = /^error:/; // how the last words of a run that could not start begin

const kept = new Map();

/** Asks a run to end; gives whether it was asked. */
async function stop(run) {
  try {
    await post(ofRun(run.id, "stop"));
    say(`${visible(run.name)} is stopping: it finishes its step and saves a checkpoint.`);
    return true;
  } catch (error) {
    say(error.message, "error");
    return false;
  }
}

/** Asks for a recipe, a name and changes, and starts a run. */
export async function startDialog(names) {
  const { recipes, lists } = await get("recipes");
  open("start", () => {
    const about = h("div", { class: "recipe" });
    const name = nameInput(freeName(recipes[0]?.name ?? "run", names));
    const choice = select(recipes.map((recipe) => [recipe.name, recipe.name]), null, { name: "recipe", required: true });
    const describe = () => put(about, description(recipes.find((recipe) => recipe.name === choice.value)));
    let given = name.value;
    choice.addEventListener("change", () => {
      describe();
      if (name.value === given) name.value = given = freeName(choice.value, names);
    });
    describe();
    return {
      title: "Start a run", button: "Start", waits: "Starting",
      fields: [field("Recipe", choice), about, listFields(lists), field("Name", name), changesField("rollout.group_size=16\nalgorithm=dapo")],
      send: (typed) => post("runs", typed),
    };
  });
}

/** Asks for changes, and resumes a run from its last checkpoint. */
function resumeDialog(run) {
  open(`resume ${run.id} ${moreSteps(run)}`, () => ({
    title: `Resume ${visible(run.name)}`, button: "Resume", waits: "Resuming", run,
    fields: [h("p", { class: "note" }, "The run resumes from its last checkpoint. To resume a finished run, raise steps."),
      changesField(`steps=${2 * (run.steps ?? 50)}`, moreSteps(run))],
    send: (typed) => post(ofRun(run.id, "resume"), typed),
  }));
}

/** Asks for a checkpoint, a name and changes, and starts a run that shares the steps up to there. */
async function forkDialog(run, names) {
  const { checkpoints } = await get(ofRun(run.id));
  if (!checkpoints.length) {
    return say(`${visible(run.name)} has no checkpoint to fork yet (checkpoint.every decides when it saves one).`, "error");
  }
  open(`fork ${run.id} ${checkpoints}`, () => ({
    title: `Fork ${visible(run.name)}`, button: "Fork", waits: "Forking",
    fields: [
      h("p", { class: "note" }, "The new run copies the steps up to a checkpoint, and continues from there with your changes."),
      field("Checkpoint", select(checkpoints.toReversed().map((step) => [step, `step ${step}`]), null, { name: "step" })),
      field("New name", nameInput(freeName(`${run.name}-fork`, names))),
      changesField("algorithm.kl_coef=0\nlearner.learning_rate=1e-4", moreSteps(run)),
    ],
    send: (typed) => post(ofRun(run.id, "fork"), { ...typed, step: Number(typed.step) }),
  }));
}

/** Shows the dialog of this key again, as it was left, or a new one. */
function open(key, build) {
  if (!kept.has(key)) kept.set(key, dialog(key, build()));
  const element = kept.get(key);
  document.body.append(element);
  element.showModal();
  addEventListener("hashchange", () => element.close(), { once: true });
}

/** A form: `send(typed)` gets what stands in its fields by their names, `run` is what it is about if it asks for no name. */
function dialog(key, { title, button, waits, run, fields, send }) {
  const wrong = h("div", { class: "error wrong", role: "alert" });
  const go = h("button", { class: "main" }, button);
  const close = h("button", { type: "button", onclick: () => element.close() }, "Close");
  const form = h("form", {}, h("h2", {}, title), fields, wrong, h("div", { class: "row" }, go, close));
  const element = h("dialog", { "aria-label": title }, form);
  const busy = (on) => {
    // A button that is disabled loses the focus, so it only says that it is.
    if (on) go.setAttribute("aria-disabled", "true");
    else go.removeAttribute("aria-disabled");
    put(go, on ? waits : button);
    put(close, on ? "Close and start in the background" : "Close");
  };
  element.addEventListener("close", () => element.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (go.getAttribute("aria-disabled")) return;
    const typed = Object.fromEntries([...new FormData(form)].map(([field, text]) => [field, text.trim()]));
    const name = visible(run?.name ?? typed.name);
    busy(true);
    put(wrong, h("span", { class: "note" }, "Waiting for the run; this takes a few seconds."));
    try {
      const chosen = Object.entries(typed).filter(([name, text]) => name.startsWith(SET) && text)
        .map(([name, text]) => `${name.slice(SET.length)}=${name === `${SET}rewards` ? rewardList(text) : text}`);
      const changes = [...chosen, ...typed.changes.split("\n").map((line) => line.trim()).filter(Boolean)];
      began(await send({ ...typed, changes }), name, element.open);
      kept.delete(key);
      element.close();
    } catch (error) {
      put(wrong, failure(error.message));
      if (!element.open) say(`${name} did not start. Open \u201c${title}\u201d again to see the error.`, "error");
    } finally {
      busy(false);
    }
  });
  return element;
}

// What can be chosen from lists, by its setting; anything else may be typed.
const SET = "set ";
const LISTED = [["model.path", "Model, folder or hub id"], ["task.name", "Task, data file or hub:owner/data"],
  ["algorithm", "Algorithm"], ["rewards", "Rewards separated by commas, such as correct_answer, my.py:short=0.2"]];

function listFields(lists) {
  const listed = ([key, label]) => [field(label, h("input", { name: SET + key, list: `of ${key}`, spellcheck: "false", placeholder: "as in the recipe" })),
    h("datalist", { id: `of ${key}` }, options(lists[key].map((value) => [value, value])))];
  return h("div", { class: "lists" }, LISTED.map(listed));
}

/** The setting of such a list. */
function rewardList(text) {
  return JSON.stringify(text.split(",").map((one) => one.trim()).filter(Boolean).map((one) => {
    const [, path, name, weight] = /^(?:(.*):)?([^:=]*)(?:=(.*))?$/.exec(one) ?? [null, null, one];
    return { name, ...(path ? { path } : {}), ...(weight ? { weight: Number.isNaN(Number(weight)) ? weight : Number(weight) } : {}) };
  }));
}

/** Goes to the run that has begun; somebody who has closed the dialog is elsewhere by now and stays there. */
function began({ id }, name, waited) {
  const to = `#/${ofRun(id)}`;
  if (waited) location.hash = to;
  else say([`${name} has started. `, h("a", { href: to }, "Open the run")]);
}

/** What a run says that could not start: its error first, and what came before on request. */
function failure(message) {
  const lines = message.split("\n");
  const last = lines.findLastIndex((line) => ERROR.test(line));
  if (last < 1) return written(message);
  return [written(lines.slice(last).join("\n")),
    h("details", {}, h("summary", {}, "Full output"), written(message))];
}

function description(recipe) {
  if (!recipe) return null;
  const settings = h("pre", { tabindex: "0" }, visible(recipe.text));
  return [h("p", { class: "note" }, visible(recipe.comment)), h("details", {}, h("summary", {}, "Settings of the recipe"), settings)];
}

function nameInput(value) {
  return h("input", { name: "name", type: "text", value, required: true, spellcheck: "false", autocomplete: "off",
    placeholder: "letters, digits, . _ -" });
}

/** The change that a run needs which has made all its steps: more of them. */
function moreSteps({ step, steps }) {
  return steps && step >= steps ? `steps=${2 * steps}` : "";
}

function changesField(example, value = "") {
  return field("Changes, one per line, such as rollout.group_size=16",
    h("textarea", { name: "changes", rows: "4", spellcheck: "false", autocomplete: "off", placeholder: example, value }));
}

function freeName(wanted, names) {
  if (!names.includes(wanted)) return wanted;
  let number = 2;
  while (names.includes(`${wanted}-${number}`)) number++;
  return `${wanted}-${number}`;
}

// The buttons of a run: one that stops or resumes it, one that forks it.

/**
 * The buttons; `show(run)` brings them up to date. `names` gives the names that are taken, of other runs; `saved(run)`
 * follows another note.
 */
export function actions(names, saved) {
  let run = null, asked = false;
  // One button for both, so that it keeps the focus when the run ends.
  const turn = h("button", { type: "button", class: "small", onclick: async () => {
    if (run.status !== "running") return resumeDialog(run);
    if (asked) return;
    asked = await stop(run);
    show(run);
  } });
  const ask = () => forkDialog(run, names()).catch((error) => say(error.message, "error"));
  const fork = h("button", { type: "button", class: "small", onclick: ask }, "Fork");
  const notes = h("button", { type: "button", class: "small", onclick: () => keepDialog(run, () => saved(run)) }, "Notes");
  const element = h("span", { class: "row actions" }, turn, fork, notes);
  const show = (found) => {
    run = found;
    if (run.status !== "running") asked = false;
    turn.hidden = fork.hidden = run.status === "broken";
    write(turn, run.status !== "running" ? "Resume" : asked ? "Stopping" : "Stop");
    turn.setAttribute("aria-label", `${turn.textContent} ${visible(run.name)}`);
    fork.setAttribute("aria-label", `Fork ${visible(run.name)}`);
    notes.setAttribute("aria-label", `Notes on ${visible(run.name)}`);
  };
  return { element, show };
}
