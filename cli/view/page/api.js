// SPDX-License-Identifier: Apache-2.0
// Asks the server. The token is part of the page's own address, so relative addresses have it, too.

let controller = new AbortController();

/** Gives up what the last view asked for and has not received yet. */
export function giveUp() {
  controller.abort();
  controller = new AbortController();
}

// Integers that a double cannot hold stay as they are written.
function keepExact(key, value, context) {
  if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
  return /^-?\d+$/.test(context?.source ?? "") ? context.source : value;
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

/** The answer to one question. Throws an Error with the words of the server. */
export async function ask(what, parameters = {}) {
  const { signal } = controller;
  const text = query(parameters);
  let response;
  try {
    response = await fetch(`api/${what}${text ? `?${text}` : ""}`, { signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("varve view does not answer any more. Start it again.");
  }
  const body = await response.text();
  if (response.ok) return JSON.parse(body, keepExact);
  let message = body.trim();
  try {
    message = JSON.parse(body).error;
  } catch {
    // A refusal is plain text.
  }
  throw new Error(message || `the server answered ${response.status}`);
}
