// What is wrong with where things stand on a page: anywhere, and at the named lines and columns.
async ({ lines, columns }) => {
  const loads = () => [...document.querySelectorAll("main .note")].some((e) => e.textContent === "Loading.");
  for (let frame = 0; frame < 3 || (loads() && frame < 600); frame++) await new Promise(requestAnimationFrame);
  const faults = [], wide = innerWidth > 700 ? 0 : 1;
  const name = (e) => `${e.localName}${e.className && typeof e.className === "string" ? "." + e.className.trim().replaceAll(" ", ".") : ""} "${e.textContent.trim().slice(0, 30)}"`;
  const seen = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest(".unseen, .skip, thead, .progress .name, .later")
    && e.getBoundingClientRect().width > 0;
  const hides = (e) => getComputedStyle(e).overflowX !== "visible";
  const ancestors = (e) => { const all = []; for (let one = e.parentElement; one; one = one.parentElement) all.push(one); return all; };
  const root = document.querySelector("dialog[open]") ?? document.body;
  const all = [...root.querySelectorAll("*")].filter((e) => !(e instanceof SVGElement && e.localName !== "svg") && seen(e));
  if (document.documentElement.scrollWidth > innerWidth) faults.push(`scrolls sideways: ${document.documentElement.scrollWidth}`);
  for (const e of all) {
    const parent = ancestors(e).find((one) => !["inline", "contents"].includes(getComputedStyle(one).display));
    const own = e.getBoundingClientRect(), around = parent.getBoundingClientRect(), style = getComputedStyle(e);
    // Spaces at the end of a line hang out of an inline element, unseen.
    const free = ["absolute", "fixed"].includes(style.position) || style.display === "inline" || hides(parent);
    if (!hides(e) && !free && e.scrollWidth > e.clientWidth + 1 && e.clientWidth) faults.push(`something sticks out of ${name(e)}`);
    if (!free && (own.right > around.right + 1 || own.left < around.left - 1)) faults.push(`wider than its parent: ${name(e)}`);
    const cut = style.textOverflow !== "ellipsis" && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 2);
    if (["BUTTON", "SELECT", "H1", "H2", "H3"].includes(e.tagName) && style.display !== "inline" && cut) faults.push(`text is clipped: ${name(e)}`);
    if (e.tagName === "BUTTON" && own.width > 0.75 * innerWidth) faults.push(`a bar, no button: ${name(e)}`);
  }
  // What can be read or pressed, as boxes of its lines within what shows them.
  const boxes = all.flatMap((e) => {
    const control = ["BUTTON", "INPUT", "SELECT", "TEXTAREA"].includes(e.tagName), parts = [];
    if (control) parts.push(...e.getClientRects());
    else for (const node of e.childNodes) if (node.nodeType === 3 && node.textContent.trim()) {
      const range = document.createRange();
      range.selectNodeContents(node);
      parts.push(...range.getClientRects());
    }
    if (!parts.length || e.closest("button, label, .equation, .formula, svg, .bars, .stacked, .plot, .u-wrap") && !control) return [];
    const over = [e, ...ancestors(e)];
    if (over.some((one) => ["sticky", "fixed", "absolute"].includes(getComputedStyle(one).position))) return [];
    const frames = over.filter(hides).map((one) => one.getBoundingClientRect());
    return parts.map((part) => ({ e, left: Math.max(part.left, ...frames.map((one) => one.left)), right: Math.min(part.right, ...frames.map((one) => one.right)),
      top: Math.max(part.top, ...frames.map((one) => one.top)), bottom: Math.min(part.bottom, ...frames.map((one) => one.bottom)) }));
  }).filter(({ left, right, top, bottom }) => right > left && bottom > top).sort((a, b) => a.top - b.top);
  boxes.forEach((a, at) => {
    for (const b of boxes.slice(at + 1)) {
      if (b.top > a.bottom - 5) break;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      if (across > 2 && a.e !== b.e && !a.e.contains(b.e) && !b.e.contains(a.e)) faults.push(`overlap: ${name(a.e)} and ${name(b.e)}`);
    }
  });
  const held = (e) => [...e.children].filter(seen).map((one) => [one, one.getBoundingClientRect()]);
  for (const line of lines) {
    const found = [...root.querySelectorAll(line)].filter(seen);
    if (!found.length) faults.push(`not there: ${line}`);
    for (const e of found) {
      const middles = held(e).map(([, { top, bottom }]) => (top + bottom) / 2);
      if (Math.max(...middles) - Math.min(...middles) > 3) faults.push(`not in one line: ${name(e)}`);
    }
  }
  for (const [selector, counts] of Object.entries(columns)) {
    const [first] = [...document.querySelectorAll(selector)].filter((e) => seen(e) && held(e).length > 1);
    if (!first) { faults.push(`not there: ${selector}`); continue; }
    const inside = held(first), beside = inside.filter(([, { top }]) => Math.abs(top - inside[0][1].top) < 3).length;
    if (beside !== Math.min(counts[wide], inside.length)) faults.push(`${beside} instead of ${counts[wide]} side by side: ${selector}`);
  }
  return [...new Set(faults)];
}
