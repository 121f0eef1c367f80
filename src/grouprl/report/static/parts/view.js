// Draws what is in view, once a frame at most: sixty charts of a long run cost no more than those that are seen.
import { Gone } from "./api.js";
import { write } from "./dom.js";

const AROUND = "160px 0px"; // drawn before it is scrolled to
const PAUSE = 20; // times as long as an answer took: hundreds of runs should not cost the training its processor
/** What a page says while it gets no answer. */
export const LOST = "The lab does not answer. This page goes on by itself when it does; "
  + "a lab that was started anew has to be opened by its new link.";

export class View {
  #shown = new Map(); // by id, {card, stale}
  #frame = 0;
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

  /** Everything has changed. */
  change() {
    for (const one of this.#shown.values()) one.stale = true;
    this.#ask();
  }

  end() {
    this.#watch.disconnect();
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
        if (!one.card.chart.seen || !one.stale) continue;
        one.stale = false;
        one.card.draw();
      }
    });
  }
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
