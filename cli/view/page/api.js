// SPDX-License-Identifier: Apache-2.0
// Asks the server. The token is part of the page's own address, so relative addresses have it, too.

let controller = new AbortController();

/** Gives up what the last view asked for and has not received yet. */
export function giveUp() {
  controller.abort();
  controller = new AbortController();
}

// How long the page waits before it asks again for an answer that is being made. The server waits
// with each question, too.
const PAUSE_MS = 100;

// What is being made, and who shows that.
const waiting = new Map();
let showWaiting = () => {};

/** `show` is called with the names of the answers that are being made, whenever they change. */
export function onWaiting(show) {
  showWaiting = () => show(stillWaiting());
}

/** The names of the answers that are being made. */
export function stillWaiting() {
  return [...waiting.values()];
}

/** The parameters as a query. Those without a value are left out. */
export function query(parameters) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") pairs.append(name, one);
    }
  }
  return pairs.toString();
}

async function get(what, parameters, signal) {
  const text = query(parameters);
  try {
    return await fetch(`api/${what}${text ? `?${text}` : ""}`, { signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("varve view does not answer any more. Start it again.");
  }
}

// An answer that takes long has a number. It is lost if nobody asks for it in time.
async function whole(response, what, parameters, signal) {
  const key = {};
  let number = null;
  try {
    while (response.status === 202) {
      const { job } = await response.json();
      number = job;
      waiting.set(key, what);
      showWaiting();
      await new Promise((done) => setTimeout(done, PAUSE_MS));
      response = await get("job", { id: job }, signal);
      if (response.status === 410) response = await get(what, parameters, signal);
    }
    return response;
  } catch (error) {
    // A check goes on, and the view Health shows it later.
    if (error.name === "AbortError" && number !== null && what !== "check") get("job", { id: number, giveup: 1 }).catch(() => {});
    throw error;
  } finally {
    if (waiting.delete(key)) showWaiting();
  }
}

/** The answer to one question. Throws an Error with the words of the server. */
export async function ask(what, parameters = {}) {
  const { signal } = controller;
  const response = await whole(await get(what, parameters, signal), what, parameters, signal);
  const body = await response.text();
  if (response.ok) return JSON.parse(body);
  let message = body.trim();
  try {
    message = JSON.parse(body).error;
  } catch {
    // A refusal is plain text.
  }
  throw new Error(message || `the server answered ${response.status}`);
}
