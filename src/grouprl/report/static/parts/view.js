// Draws what is in view, once a frame at most: sixty charts of a long run cost no more than those that are seen.

const AROUND = "160px 0px"; // drawn before it is scrolled to

export class View {
  #known = new Map();
  #frame = 0;
  #watch = new IntersectionObserver((entries) => this.#came(entries), { rootMargin: AROUND });

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
