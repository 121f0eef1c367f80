// What the explainers ask the lab, and the addresses of the page: a view that can be linked keeps all of its choices there.
import { get, ofRun, queryOf } from "./api.js";
import { h, put } from "./dom.js";

const PAUSE = 120; // milliseconds without a further change

/**
 * Asks an explainer, after a pause with `soon`, and forgets answers to what is no longer asked. `found(answer)` gets the
 * last one, `wrong(sentence)` the last error; without it the element `failed` shows that.
 */
export function asking(path, found, wrong = null) {
  const failed = h("p", { class: "error", role: "status" });
  let timer = 0;
  let running = null;
  const end = () => {
    clearTimeout(timer);
    running?.abort();
  };
  const ask = async (parameters) => {
    running = new AbortController();
    const { signal } = running;
    try {
      const answer = await get(`explain/${path}`, parameters, signal);
      if (signal.aborted) return;
      put(failed);
      found(answer);
    } catch (error) {
      if (!signal.aborted) (wrong ?? ((sentence) => put(failed, sentence)))(error.message);
    }
  };
  return {
    failed,
    end,
    now(parameters) {
      end();
      return ask(parameters);
    },
    soon(parameters) {
      end();
      timer = setTimeout(ask, PAUSE, parameters);
    },
  };
}

/** The address of a run's groups, of one step or of one group, with what was chosen in it. */
export function address(run, { step, group } = {}, query = {}) {
  const place = [step, group].filter((part) => part !== undefined);
  return `#/${ofRun(run, "groups", ...place)}${queryOf(query)}`;
}

/** The choices of the address that is shown. */
export function choices() {
  return Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? ""));
}

/** Puts the state of a page into its address, or changes some of it, without a step for the back button. */
export function note(changes) {
  rename(location.hash.split("?")[0] + queryOf({ ...choices(), ...changes }));
}

/** Gives the view that is shown another address. */
export function rename(to) {
  history.replaceState(null, "", to);
}

/** Goes to another address without drawing the page anew; the back button returns from it. */
export function move(to) {
  if (to !== location.hash) history.pushState(null, "", to);
}

/** What this browser keeps under a name, and nothing where it keeps nothing; a second value replaces it. */
export function kept(name, value = undefined) {
  try {
    if (value !== undefined) localStorage.setItem(`grouprl ${name}`, value);
    return localStorage.getItem(`grouprl ${name}`) ?? "";
  } catch {
    return "";
  }
}

export function whole(text) {
  return /^\d{1,9}$/.test(text ?? "") ? Number(text) : null;
}
