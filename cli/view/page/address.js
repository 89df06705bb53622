// SPDX-License-Identifier: Apache-2.0
// The address of a view: its name and parameters, in the fragment. #/step?step=main@100

import { query } from "./api.js";

/** The name of the view that the address asks for, and its parameters. */
export function wanted() {
  const [name, parameters] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { name, parameters: new URLSearchParams(parameters ?? "") };
}

/** Names and values as an object. A name that is there several times has an array of its values. */
export function valuesByName(pairs) {
  const object = Object.create(null);
  for (const [name, value] of pairs) object[name] = name in object ? [object[name], value].flat() : value;
  return object;
}

/** The address of a view. */
export function link(view, parameters = {}) {
  const text = query(parameters);
  return `#/${view}${text ? `?${text}` : ""}`;
}

// What a table notes of itself begins with this, so that no field of a view has such a name.
const OF_A_TABLE = "table-";

/** The parameters without those of tables, which are about the rows that were shown. */
export function withoutTables(parameters) {
  return Object.fromEntries(Object.entries(parameters).filter(([name]) => !name.startsWith(OF_A_TABLE)));
}

let whenNoted = () => {};

/** `call` is called when the address of the view that is shown has changed, and the view has not. */
export function onNoted(call) {
  whenNoted = call;
}

/** What the address says of a table. `key` names the table among those of the view. */
export function readTable(key) {
  const { parameters } = wanted();
  const get = (each) => parameters.get(OF_A_TABLE + key + each) ?? undefined;
  return { offset: /^\d{1,12}$/.test(get("from")) ? Number(get("from")) : 0, sort: get("sort"), order: get("order") };
}

/** Notes in the address how a table is shown. That is no step in the history of the browser. */
export function noteTable(key, { offset, sort, order }) {
  const { name, parameters } = wanted();
  for (const [each, value] of Object.entries({ from: offset, sort, order })) {
    if (value) parameters.set(OF_A_TABLE + key + each, value);
    else parameters.delete(OF_A_TABLE + key + each);
  }
  history.replaceState(null, "", `#/${name}?${parameters}`);
  whenNoted();
}
