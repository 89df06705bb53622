// SPDX-License-Identifier: Apache-2.0
// Gives browser_test.py the texts of a file of SVG, and those that are cut off.

const texts = [...document.querySelectorAll("text")];
const size = (name) => Number(document.documentElement.getAttribute(name));
function isOutside(text) {
  const { left, top, right, bottom } = text.getBoundingClientRect();
  return left < -1 || top < -1 || right > size("width") + 1 || bottom > size("height") + 1;
}
const words = (elements) => elements.map((text) => text.textContent);
return [words(texts), words(texts.filter(isOutside))];
