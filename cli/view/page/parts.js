// SPDX-License-Identifier: Apache-2.0
// What several views share.

import { link, valuesByName } from "./address.js";
import { ask } from "./api.js";
import { h, newId } from "./dom.js";
import { printable, stepName } from "./format.js";

export function heading(text) {
  return h("h3", {}, text);
}

/** A section with a heading. */
export function section(title, ...children) {
  return h("section", {}, heading(title), children);
}

/** A field with its label. `choices` makes it a list to choose from. */
export function field(label, name, value, { choices, hint, type = "text" } = {}) {
  const id = newId();
  const control = choices
    ? h("select", { id, name }, choices.map((choice) => {
        const [key, shown] = Array.isArray(choice) ? choice : [choice, choice];
        return h("option", { value: key, selected: key === value }, printable(shown));
      }))
    : h("input", { id, name, type, value, placeholder: hint, autocomplete: "off", spellcheck: "false" });
  return h("div", { class: "field" }, h("label", { for: id }, label), control);
}

/** A form whose fields become parameters of the view. */
export function form(title, fields, change, button = "Show") {
  return h(
    "form",
    {
      class: "fields",
      "aria-label": title,
      onsubmit: (event) => {
        event.preventDefault();
        change(valuesByName(new FormData(event.target)));
      },
    },
    fields,
    h("button", { type: "submit" }, button),
  );
}

export function stepLink(id, shown) {
  if (!id) return "";
  return h("a", { href: link("step", { step: stepName(id) }) }, printable(shown ?? stepName(id)));
}

export function tensorLink(step, name) {
  return h("a", { href: link("tensor", { step, name }) }, printable(name));
}

/** The newest step of all runs, or "" in an empty store. */
export async function newestStep() {
  const lanes = (await ask("lineage")).filter((lane) => lane.last);
  if (lanes.length === 0) return "";
  lanes.sort((a, b) => (a.last.created < b.last.created ? 1 : -1));
  return `${lanes[0].run}@${lanes[0].last.step}`;
}

export function empty() {
  return h("p", { class: "note" }, "The store has no checkpoint yet.");
}

/** What a view of a damaged store leaves out. */
export function damage(errors) {
  if (!errors?.length) return null;
  return h("div", { class: "error", role: "alert" },
    h("p", {}, "The store is damaged. This view may leave out what cannot be read:"),
    h("ul", {}, errors.map((error) => h("li", {}, printable(error)))));
}

/** Shows what a promise gives, or why it gives nothing. The rest of the view does not wait for it. */
export function later(promise, what) {
  const place = h("div", { "aria-busy": "true" }, h("p", { class: "note" }, `${what} \u2026`));
  promise.then(
    (content) => {
      place.replaceChildren(...[content].flat().filter(Boolean));
      place.removeAttribute("aria-busy");
    },
    (error) => {
      if (error.name === "AbortError") return;
      place.replaceChildren(h("p", { class: "error" }, printable(`${what}: ${error.message}`)));
      place.removeAttribute("aria-busy");
    },
  );
  return place;
}
