// Everything that the page asks the lab. An answer that is an error becomes an Error with the lab's own sentence.

let pageToken = null;

export async function get(path, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = given.length ? `?${new URLSearchParams(given)}` : "";
  return answer(await fetch(`api/${path}${query}`, { signal }));
}

export async function post(path, body = {}) {
  pageToken ??= (await get("session")).token;
  const headers = { "content-type": "application/json", "x-grouprl-token": pageToken };
  return answer(await fetch(`api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

/** Events of a run from a step on: listeners by name; gives what ends it. */
export function follow(run, after, listeners) {
  const source = new EventSource(`api/runs/${encodeURIComponent(run)}/events?after=${after}`);
  for (const [name, listener] of Object.entries(listeners)) {
    source.addEventListener(name, (event) => listener(event.data ? JSON.parse(event.data) : null));
  }
  return () => source.close();
}

async function answer(response) {
  const text = await response.text();
  const found = (response.headers.get("content-type") ?? "").startsWith("application/json") ? JSON.parse(text) : null;
  if (!response.ok) throw new Error(found?.error ?? (text.trim() || `the lab answered ${response.status}`));
  return found;
}
