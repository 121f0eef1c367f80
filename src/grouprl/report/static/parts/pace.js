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
