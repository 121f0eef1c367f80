// What all charts of a page have in common: their axis, smoothing, and the part of the axis that is shown.
import { h } from "../dom.js";
import { AXES } from "../units.js";

/** How charts are used, in words; where a click opens a step's groups, that as well. */
export function howTo(opens) {
  return h("p", { class: "note how" }, opens ? "Click a step to see its groups, drag to zoom. " : "Drag to zoom. ",
    "On the keyboard: Tab to a chart, arrows to walk along it, ", opens ? "Enter for the groups, " : "",
    "+ and \u2212 to zoom, Escape for the whole run.");
}

/** The bar; `show()` brings it up to date. The choice is kept in the address, so that a reload finds it again. */
export function toolbar(page, axes) {
  const { view } = page;
  view.axis = axes.includes(page.query.get("x")) ? page.query.get("x") : view.axis;
  const usual = view.smooth ? "1" : "0";
  view.smooth = (page.query.get("smooth") ?? usual) === "1";
  const keep = (name, value) => {
    if (value) page.query.set(name, value);
    else page.query.delete(name);
    const [address] = location.hash.split("?");
    history.replaceState(null, "", page.query.size ? `${address}?${page.query}` : address);
    page.changed();
  };
  const over = axes.map((axis) => h("button", { type: "button", onclick: () => {
    Object.assign(view, { axis, zoom: null });
    keep("x", axis === "step" ? "" : axis);
  } }, AXES[axis].label));
  const smooth = h("input", { type: "checkbox", checked: view.smooth, onchange: () => {
    view.smooth = smooth.checked;
    const to = view.smooth ? "1" : "0";
    keep("smooth", to === usual ? "" : to);
  } });
  const whole = h("button", { type: "button", onclick: () => page.zoomed(null) }, "Show the whole run");
  const element = h("div", { class: "toolbar card" },
    h("div", { class: "row", role: "group", "aria-label": "Drawn over" }, h("span", { class: "note" }, "Over"), over),
    h("label", { title: "The mean over about a tenth of the steps, the values themselves behind it" }, smooth, "Smooth"), whole);
  const show = () => {
    over.forEach((button, place) => button.setAttribute("aria-pressed", String(axes[place] === view.axis)));
    // Disabled it would lose the focus when it was pressed.
    whole.setAttribute("aria-disabled", String(view.zoom === null));
  };
  show();
  return { element, show };
}
