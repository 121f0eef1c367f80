// Elements are made here and nowhere else: text becomes text nodes, never markup.

/** An element: h("p", {class: "note"}, "text", child, ...). `on...` attributes are listeners, `null` children are left out. */
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
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Puts these children into an element in the place of what it had. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
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
