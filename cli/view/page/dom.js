// SPDX-License-Identifier: Apache-2.0
// Makes elements. Text only ever becomes text: names in a store may be anything.

import { printable } from "./format.js";

// Attributes that people read or hear.
const SPOKEN = ["aria-label", "title"];

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else {
      const text = value === true ? "" : String(value);
      element.setAttribute(name, SPOKEN.includes(name) ? printable(text) : text);
    }
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(printable(child)));
  }
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Hands a file to the browser's downloads. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Turns what the user sees into a name for a file. */
export function fileName(text, ending) {
  const plain = text.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_+|_+$/g, "");
  return `${plain.slice(0, 60) || "varve"}.${ending}`;
}

let lastId = 0;
export function newId() {
  lastId += 1;
  return `id${lastId}`;
}
