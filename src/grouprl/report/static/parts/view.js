// Draws what is in view, once a frame at most: sixty charts of a long run cost no more than those that are seen.

const AROUND = "160px 0px"; // drawn before it is scrolled to

export class View {
  #cards = new Map();
  #known = new Map();
  #frame = 0;
  #watch = new IntersectionObserver((entries) => this.#came(entries), { rootMargin: AROUND });

  /** Keeps the cards of these ids, ends all others and makes those that are new with `make(id)`; gives their elements. */
  arrange(ids, make) {
    for (const [id, card] of this.#cards) {
      if (ids.includes(id)) continue;
      this.remove(card);
      card.end();
      this.#cards.delete(id);
    }
    return ids.map((id) => {
      if (!this.#cards.has(id)) {
        this.#cards.set(id, make(id));
        this.add(this.#cards.get(id));
      }
      return this.#cards.get(id).element;
    });
  }

  /** Calls `draw` of a card when its element is in view and something has changed; tells its chart whether it is. */
  add(card) {
    this.#known.set(card.element, { card, stale: true });
    this.#watch.observe(card.element);
  }

  remove({ element }) {
    this.#known.delete(element);
    this.#watch.unobserve(element);
  }

  /** Everything has changed. */
  change() {
    for (const one of this.#known.values()) one.stale = true;
    this.#ask();
  }

  end() {
    this.#cards.forEach((card) => card.end());
    this.#watch.disconnect();
    cancelAnimationFrame(this.#frame);
    this.#known.clear();
  }

  #came(entries) {
    for (const { target, isIntersecting } of entries) {
      const one = this.#known.get(target);
      if (one) one.card.chart.seen = isIntersecting;
    }
    this.#ask();
  }

  #ask() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      for (const one of this.#known.values()) {
        if (!one.card.chart.seen || !one.stale) continue;
        one.stale = false;
        one.card.draw();
      }
    });
  }
}

// Things that may be asked for often and are done now and then.

/** A function that calls `act` in the next frame, but never sooner than `gap` milliseconds after the last time. */
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
    if (timer || frame) return;
    const wait = last + gap - performance.now();
    if (wait > 0) timer = setTimeout(soon, wait);
    else soon();
  };
  const end = () => {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
  };
  return { ask, end };
}
