// Everything that the page asks the lab. An answer that is an error becomes a Refused with the lab's own sentence.

// report.html is this page with its data inside: what a lab would answer, by path.
const HELD = JSON.parse(document.getElementById("held")?.textContent ?? "null");

/** Whether a lab answers: without one nothing can be started, followed or searched for. */
export const live = HELD === null;
/** Whether the other pages are there: those of a lab, or of a site of recorded runs. */
export const linked = live || HELD.site === true;
/** The address of the first page, and the links at the top where they are not the lab's. */
export const { home = "/", links = null } = HELD ?? {};

let pageToken = null;

/** The lab answered, and this is what it says is wrong. */
export class Refused extends Error {}

/** The lab did not answer. */
export class Gone extends Error {
  constructor() {
    super("The lab does not answer: it has ended, or the connection failed. "
      + "Start grouprl lab again in a terminal and open its link.");
  }
}

export async function get(path, parameters = {}, signal = undefined) {
  return live ? answer(`api/${path}${queryOf(parameters)}`, { signal }) : held(path, parameters);
}

/** The parameters that have a value, as an address has them; commas stay, so that a list can be read. */
export function queryOf(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given).toString().replaceAll("%2C", ",")}` : "";
}

/** The path of a run, or of something of it, in the lab's addresses. */
export function ofRun(run, ...parts) {
  return ["runs", encodeURIComponent(run), ...parts].join("/");
}

export async function post(path, body = {}) {
  pageToken ??= (await get("session")).token;
  const headers = { "content-type": "application/json", "x-grouprl-token": pageToken };
  return answer(`api/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
}

/** The address of a comparison of these runs: the page's address is decoded whole before it is split at commas. */
export function comparing(runs) {
  return `#/compare/${runs.map((id) => encodeURIComponent(encodeURIComponent(id))).join(",")}`;
}

/** A JSON file of the page itself. */
export async function file(name) {
  return live ? answer(`static/${name}`) : held(`static/${name}`);
}

// What a site holds beside its page: scripts by the beginning of the paths that they answer.
const loaded = new Map();
let loading = Promise.resolve(); // one at a time: each calls the same function

/** Adds the answers of a script to those of the page. */
function load(script) {
  if (!loaded.has(script)) {
    loaded.set(script, new Promise((resolve, reject) => {
      globalThis.held = async (packed) => {
        const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
        const text = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
        Object.assign(HELD.answers, await text);
        resolve();
      };
      const element = Object.assign(document.createElement("script"), { src: script });
      element.addEventListener("error", () => reject(new Refused(`${script} is missing: copy the whole folder of the site.`)));
      document.head.append(element);
    }).catch((error) => { loaded.delete(script); throw error; }));
  }
  return loaded.get(script);
}

/** What the file holds; of a step that it does not hold, the groups of the one nearest to it. */
async function held(path, parameters = {}) {
  const { answers, parts = {} } = HELD, { step = null } = parameters, key = path + queryOf(parameters);
  const part = Object.keys(parts).filter((start) => key.startsWith(start)).sort((one, other) => other.length - one.length)[0];
  if (part && !answers[key]) await (loading = loading.catch(() => {}).then(() => load(parts[part])));
  const nearest = (steps) => steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best));
  const found = answers[key] ?? answers[step === null || !answers[path]?.held ? path : `${path}?step=${nearest(answers[path].held)}`];
  if (!found) throw new Refused(HELD.site ? "This site holds recorded answers alone, and not this one: install GroupRL and open grouprl lab for the rest."
    : "This file does not hold that: grouprl lab shows the whole run.");
  return found;
}

/**
 * Events of a run after the step that `after()` gives: listeners by name; gives what ends it.
 *
 * Only while somebody looks: browsers allow six connections, so a page in the background gives its own up.
 */
export function follow(run, after, listeners) {
  if (!live) return () => {};
  let source = null;
  const turn = () => {
    source?.close();
    source = document.hidden ? null : new EventSource(`api/${ofRun(run, "events")}?after=${after()}`);
    for (const [name, listener] of Object.entries(listeners)) {
      source?.addEventListener(name, (event) => listener(event.data ? JSON.parse(event.data) : null));
    }
  };
  document.addEventListener("visibilitychange", turn);
  turn();
  return () => {
    source?.close();
    document.removeEventListener("visibilitychange", turn);
  };
}

async function answer(path, options = {}) {
  const [response, text] = await fetch(path, options)
    .then(async (found) => [found, await found.text()])
    .catch((error) => { throw error instanceof TypeError ? new Gone() : error; }); // fetch's word for no connection
  const found = (response.headers.get("content-type") ?? "").startsWith("application/json") ? JSON.parse(text) : null;
  if (!response.ok) throw new Refused(found?.error ?? (text.trim() || `the lab answered ${response.status}`));
  return found;
}
