// What the explainers ask the lab: no number on their pages comes from anywhere else.
import { get } from "./api.js";

const PAUSE = 120; // milliseconds without a further change

/** Asks after a pause, and forgets answers to what is no longer asked. `found(answer)` or `failed(error)` gets the last one. */
export function asking(path, found, failed) {
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
      if (!signal.aborted) found(answer);
    } catch (error) {
      if (!signal.aborted) failed(error);
    }
  };
  return {
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

/** Puts the state of a page into its address, without a new entry in the history. */
export function keepAddress(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = given.map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll("%2C", ",")}`).join("&");
  history.replaceState(null, "", `#${path}${query ? `?${query}` : ""}`);
}

// Where a view is: #/runs/ID/groups/STEP/GROUP?QUERY. A view that can be linked keeps all of its choices there.

/** The address of a run's groups, of one step or of one group, with what was chosen in it. */
export function address(run, place = {}, query = {}) {
  const parts = ["#/runs", encodeURIComponent(run), "groups"];
  if (place.step !== undefined) parts.push(place.step);
  if (place.group !== undefined) parts.push(place.group);
  const chosen = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return parts.join("/") + (chosen.length ? `?${new URLSearchParams(chosen)}` : "");
}

/** The choices of the address that is shown. */
export function choices() {
  return Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? ""));
}

/** Notes a small choice (a focus, a colouring) in the address without a step for the back button. */
export function note(changes) {
  const [path] = location.hash.split("?");
  const kept = Object.entries({ ...choices(), ...changes }).filter(([, value]) => value !== null && value !== undefined);
  history.replaceState(null, "", path + (kept.length ? `?${new URLSearchParams(kept)}` : ""));
}

/** Goes to another address without drawing the page anew; the back button returns from it. */
export function move(to) {
  if (to !== location.hash) history.pushState(null, "", to);
}

export function whole(text) {
  return /^\d{1,9}$/.test(text ?? "") ? Number(text) : null;
}
