// What the explainers ask the lab: no number on their pages comes from anywhere else.
import { get } from "../api.js";

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
