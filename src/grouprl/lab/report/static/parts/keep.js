// What a reader keeps of a run: tags, a note, another name, whether the list leaves it out; or nothing of it.
import { ofRun, post } from "./api.js";
import { field, h, put, say } from "./dom.js";
import { visible, written } from "./text.js";

/** The dialog of a run's notes; what is typed stays until it is accepted or the dialog is closed. `saved()` follows a change. */
export function keepDialog(run, saved) {
  const wrong = h("div", { class: "error wrong", role: "alert" });
  const text = (name, value, more = {}) => h("input", { name, value, spellcheck: "false", autocomplete: "off", ...more });
  const name = text("name", run.name, { required: true }), tags = text("tags", (run.tags ?? []).join(", "), { placeholder: "best, long completions" });
  const note = h("textarea", { rows: "4", value: run.note ?? "" }), archived = h("input", { type: "checkbox", checked: run.archived });
  const sure = text("sure", "", { placeholder: run.name });
  const close = () => element.close();
  const attempt = async (act) => {
    try {
      await act();
      close();
    } catch (error) {
      put(wrong, written(error.message));
    }
  };
  const save = async () => {
    const to = name.value.trim();
    const given = tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
    await post(ofRun(run.id, "notes"), { tags: given, note: note.value, archived: archived.checked });
    Object.assign(run, { tags: given, note: note.value, archived: archived.checked }); // the dialog may open again before the page asks again
    saved();
    const { id } = to === run.name ? run : await post(ofRun(run.id, "rename"), { name: to });
    if (id !== run.id) moved(run, `#/${ofRun(id)}`);
    say(`Saved the notes on ${visible(to)}.`);
  };
  const remove = async () => {
    await post(ofRun(run.id, "delete"), { name: sure.value.trim() });
    moved(run, "#/");
    say(`${visible(run.name)} is deleted.`);
  };
  const form = (act, ...inside) => h("form", { onsubmit: (event) => { event.preventDefault(); attempt(act); } }, inside);
  const kept = form(save,
    h("h2", {}, `Notes on ${visible(run.name)}`), field("Name", name), field("Tags, separated by commas", tags), field("Note", note),
    h("label", { class: "row" }, archived, "Archived: hidden from the list unless \u201cShow archived\u201d is on"), wrong,
    h("div", { class: "row" }, h("button", { class: "main" }, "Save"), h("button", { type: "button", onclick: close }, "Close")));
  const gone = h("details", { class: "delete" }, h("summary", {}, "Delete this run"), form(remove,
    h("p", { class: "note" }, "This removes its folder with every completion and checkpoint. It cannot be undone."),
    field("Type its name to delete it", sure), h("button", { class: "danger" }, "Delete")));
  const element = h("dialog", { "aria-label": `Notes on ${visible(run.name)}`, onclose: () => element.remove() }, kept, gone);
  document.body.append(element);
  element.showModal();
  addEventListener("hashchange", close, { once: true });
}

/** Goes to another address, for somebody who looks at a run that is no longer there. */
function moved(run, to) {
  if (location.hash.startsWith(`#/${ofRun(run.id)}`)) location.hash = to;
}
