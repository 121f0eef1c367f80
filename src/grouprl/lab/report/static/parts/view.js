// What the charts of a page share: they are drawn when they are in view, over one axis, and kept up to date.
import { note } from "./address.js";
import { Gone } from "./api.js";
import { h, write } from "./dom.js";
import { AXES } from "./text.js";

const AROUND = "160px 0px"; // drawn before it is scrolled to
const PAUSE = 20; // times as long as an answer took: hundreds of runs should not cost the training its processor
/** What a page says while it gets no answer. */
export const LOST = "The lab does not answer. This page continues when the lab answers again; "
  + "after a restart, open the lab's new link.";

/** Draws what is in view, once a frame at most: sixty charts of a long run cost no more than those that are seen. */
class View {
  #shown = new Map(); // by id, {card, stale}
  #frame = 0;
  #idle = 0;
  #printed = () => this.#shown.forEach((one) => draw(one));
  #watch = new IntersectionObserver((entries) => this.#came(entries), { rootMargin: AROUND });

  /**
   * Keeps the cards of these ids, ends all others and makes those that are new with `make(id)`; gives their elements.
   *
   * A card's `draw` is called when its element is in view and something has changed; its chart knows whether it is.
   */
  arrange(ids, make) {
    for (const [id, { card }] of this.#shown) {
      if (ids.includes(id)) continue;
      this.#watch.unobserve(card.element);
      card.end();
      this.#shown.delete(id);
    }
    return ids.map((id) => {
      if (!this.#shown.has(id)) {
        this.#shown.set(id, { card: make(id), stale: true });
        this.#watch.observe(this.#shown.get(id).card.element);
      }
      return this.#shown.get(id).card.element;
    });
  }

  constructor() {
    addEventListener("beforeprint", this.#printed);
  }

  /** Everything has changed. */
  change() {
    for (const one of this.#shown.values()) one.stale = true;
    this.#ask();
  }

  end() {
    this.#watch.disconnect();
    removeEventListener("beforeprint", this.#printed);
    cancelIdleCallback(this.#idle);
    cancelAnimationFrame(this.#frame);
    this.#shown.forEach(({ card }) => card.end());
    this.#shown.clear();
  }

  #came(entries) {
    const seen = new Map(entries.map(({ target, isIntersecting }) => [target, isIntersecting]));
    for (const { card } of this.#shown.values()) card.chart.seen = seen.get(card.element) ?? card.chart.seen;
    this.#ask();
  }

  #ask() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      for (const one of this.#shown.values()) {
        if (one.card.chart.seen && one.stale) draw(one);
      }
      this.#rest();
    });
  }

  /** Draws what was never seen, one chart at a time when there is nothing else to do: for printing and pictures of the whole page. */
  #rest() {
    cancelIdleCallback(this.#idle);
    const next = [...this.#shown.values()].find((one) => !one.drawn && one.card.element.offsetParent);
    if (!next) return;
    this.#idle = requestIdleCallback(() => {
      draw(next);
      this.#rest();
    });
  }
}

function draw(one) {
  Object.assign(one, { stale: false, drawn: true });
  one.card.draw();
}

// Things that may be asked for often and are done now and then.

/** Draws with `act` in the next frame, but never sooner than `gap` milliseconds after the last time. */
export function paced(act, gap) {
  let last = -Infinity, timer = 0, frame = 0;
  const soon = () => {
    timer = 0;
    // Nobody sees what is drawn in the background, and a browser gives it no frame.
    frame = requestAnimationFrame(() => {
      frame = 0;
      last = performance.now();
      act();
    });
  };
  const ask = () => {
    if (!timer && !frame) timer = setTimeout(soon, last + gap - performance.now());
  };
  const end = () => {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
  };
  return { ask, end };
}

/**
 * Shows what `ask()` gives, again and again while somebody looks; gives what ends that. Not by events: browsers allow six
 * connections. `wrong` says why there was no answer; `ask` may give nothing.
 */
export function polled(every, ask, show, wrong) {
  let timer = 0, ended = false;
  const turn = async () => {
    const began = performance.now();
    const found = document.hidden ? null : await ask().catch((error) => void write(wrong, error instanceof Gone ? LOST : error.message));
    if (ended) return;
    if (found) {
      write(wrong, "");
      show(found);
    }
    clearTimeout(timer);
    timer = setTimeout(turn, Math.max(every, PAUSE * (performance.now() - began)));
  };
  timer = setTimeout(turn, every);
  document.addEventListener("visibilitychange", turn);
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", turn);
  };
}

// Their axis, smoothing, and the part of the axis that is shown.

/** How charts are used, in words; where a click opens a step's groups, that as well. */
export function howTo(opens) {
  return h("p", { class: "note how" }, opens ? "Click a step to see its groups, drag to zoom. " : "Drag to zoom. ",
    "On the keyboard: Tab to a chart, arrows to walk along it, ", opens ? "Enter for the groups, " : "",
    "+ and \u2212 to zoom, Escape to show the whole run.");
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
  const find = h("input", { type: "search", class: "find", placeholder: "Find a chart", "aria-label": "Find a chart", oninput: () => page.seek(find.value) });
  return h("div", { class: "toolbar card" },
    h("div", { class: "row", role: "group", "aria-label": "Drawn over" }, h("span", { class: "note" }, "Over"), over),
    h("label", { title: "Moving mean over about a tenth of the steps, in front of the values" }, smooth, "Smooth"), whole, page.seek ? find : null);
}
