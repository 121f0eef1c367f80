// What all charts of a page have in common: their axis, smoothing, and the part of the axis that is shown.
import { note } from "../address.js";
import { h } from "../dom.js";
import { AXES } from "../text.js";
import { View } from "../view.js";

/** How charts are used, in words; where a click opens a step's groups, that as well. */
export function howTo(opens) {
  return h("p", { class: "note how" }, opens ? "Click a step to see its groups, drag to zoom. " : "Drag to zoom. ",
    "On the keyboard: Tab to a chart, arrows to walk along it, ", opens ? "Enter for the groups, " : "",
    "+ and \u2212 to zoom, Escape for the whole run.");
}

/**
 * The bar; the choice is kept in the address, so that a reload finds it again.
 *
 * Gives `page` what its charts share: `view`, `drawing`, and `zoomed(range)`, which shows a part of the axis; null = all.
 */
export function toolbar(page, sync, smoothed) {
  const axes = Object.keys(AXES), asked = page.query.get("x"), usual = smoothed ? "1" : "0";
  const smooths = (page.query.get("smooth") ?? usual) === "1";
  const view = { axis: axes.includes(asked) ? asked : axes[0], smooth: smooths, zoom: null, sync };
  const changed = () => {
    over.forEach((button, place) => button.setAttribute("aria-pressed", String(axes[place] === view.axis)));
    // Disabled it would lose the focus when it was pressed.
    whole.setAttribute("aria-disabled", String(view.zoom === null));
    page.drawing.change();
  };
  const zoomed = (zoom) => {
    Object.assign(view, { zoom });
    changed();
  };
  Object.assign(page, { view, zoomed, drawing: new View() });
  const over = axes.map((axis) => h("button", { type: "button", onclick: () => {
    Object.assign(view, { axis, zoom: null });
    note({ x: axis === "step" ? null : axis });
    changed();
  } }, AXES[axis].label));
  const smooth = h("input", { type: "checkbox", checked: view.smooth, onchange: () => {
    view.smooth = smooth.checked;
    const to = view.smooth ? "1" : "0";
    note({ smooth: to === usual ? null : to });
    changed();
  } });
  const whole = h("button", { type: "button", onclick: () => zoomed(null) }, "Show the whole run");
  changed();
  return h("div", { class: "toolbar card" },
    h("div", { class: "row", role: "group", "aria-label": "Drawn over" }, h("span", { class: "note" }, "Over"), over),
    h("label", { title: "The mean over about a tenth of the steps, the values themselves behind it" }, smooth, "Smooth"), whole);
}
