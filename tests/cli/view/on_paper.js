// SPDX-License-Identifier: Apache-2.0
// What browser_test.py asks a view that is laid out for paper of arguments[0] pixels.

const shown = [...document.body.querySelectorAll("*")].filter(
  (element) => element.getClientRects().length > 0 && getComputedStyle(element).visibility === "visible",
);
const box = (element) => element.getBoundingClientRect();
const words = (elements) =>
  elements.map((element) => `${element.outerHTML.slice(0, 80)} from ${box(element).left} to ${box(element).right}`);
const isOutside = ({ left, right }) => left < -1 || right > arguments[0] + 1;
const scrolls = (element) =>
  element.scrollWidth > element.clientWidth + 1 && !["visible", "clip"].includes(getComputedStyle(element).overflowX);

// Labels of a plot that stand on another one.
const isOn = (a, b) =>
  a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
function crowded(plot) {
  const texts = [...plot.querySelectorAll("text")];
  return texts.filter((one, i) => texts.slice(i + 1).some((other) => isOn(box(one), box(other))));
}

const style = getComputedStyle(document.documentElement);
const colors = ["--look0", "--look4", "--error", "--warning"].map((name) => style.getPropertyValue(name));
return {
  cut: words(shown.filter((element) => isOutside(box(element)))),
  hidden: words(shown.filter(scrolls)),
  crowded: words([...document.querySelectorAll("svg.plot")].flatMap(crowded)),
  controls: words(shown.filter((element) => element.matches("input, select, header nav, button:not(.sort)"))),
  look: [getComputedStyle(document.body).backgroundColor, style.colorScheme, style.color, ...colors],
};
