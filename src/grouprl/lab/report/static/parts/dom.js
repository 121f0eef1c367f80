// Elements are made here and nowhere else: text becomes text nodes, never markup.

/** An element: h("p", {class: "note"}, "text", child, ...). `on...` attributes are listeners; it skips `null` children. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Puts these children into an element in the place of what it had. */
export function put(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

/** Writes a text where it is another one, so that nothing is laid out anew for nothing. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replaces what an element holds, unless it would be the same. */
export function refresh(element, key, build) {
  const text = JSON.stringify(key);
  if (element.dataset.key === text) return;
  element.dataset.key = text;
  put(element, build());
}

/** A button that stays pressed until it is pressed again; `act(on)` follows each change. */
export function toggle(on, act, inside, attributes = {}) {
  const button = h("button", { type: "button", ...attributes, "aria-pressed": String(on), onclick: () => {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(pressed));
    act(pressed);
  } }, inside);
  return button;
}

/** A box that takes a value into a set or out of it. */
export function memberBox(set, value, changed = () => {}, attributes = {}) {
  const box = h("input", { type: "checkbox", checked: set.has(value), ...attributes, onchange: () => {
    if (box.checked) set.add(value);
    else set.delete(value);
    changed();
  } });
  return box;
}

/** A choice of [value, name] pairs. */
export function select(pairs, chosen = null, attributes = {}) {
  return h("select", attributes, options(pairs, chosen));
}

export function options(pairs, chosen = null) {
  return pairs.map(([value, name]) => h("option", { value: String(value), selected: value === chosen }, name));
}

/** A control with its name above it. */
export function field(name, control, look = "field") {
  return h("label", { class: look }, h("span", {}, name), control);
}

/** Says something to people who look and to people who listen: a text, or several parts. What has a link stays longer. */
export function say(sentence, kind = "note") {
  const said = document.getElementById("said");
  put(said, h("p", { class: kind }, sentence));
  clearTimeout(say.timer);
  say.timer = setTimeout(() => put(said), kind === "error" || Array.isArray(sentence) ? 20000 : 5000);
}
