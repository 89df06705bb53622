// SPDX-License-Identifier: Apache-2.0
// Shows the view that the fragment of the address names: #/step?step=main@100.

import * as address from "./address.js";
import { ask, giveUp, onWaiting, stillWaiting } from "./api.js";
import { h, replace } from "./dom.js";
import { printable, time } from "./format.js";
import { showDiff } from "./diff.js";
import { showHealth } from "./health.js";
import { showRuns } from "./runs.js";
import { showSpace } from "./space.js";
import { showStep } from "./step.js";
import { showTensor } from "./tensor.js";

const VIEWS = [
  { name: "runs", title: "Runs", show: showRuns },
  { name: "space", title: "Space", show: showSpace },
  { name: "step", title: "Step", show: showStep },
  { name: "tensor", title: "Tensor", show: showTensor },
  { name: "diff", title: "Diff", show: showDiff },
  { name: "health", title: "Health", show: showHealth },
];

const KEYS = [
  ["1 to 6", "the views, from Runs to Health"],
  ["r", "ask again"],
  ["/", "the first field of the view"],
  ["[ and ]", "the step before, and after (views Step and Tensor)"],
  ["t", "light or dark"],
  ["?", "these keys"],
];

const byId = (id) => document.getElementById(id);

/** The view and the parameters that the address asks for. */
function wanted() {
  const { name, parameters } = address.wanted();
  return { view: VIEWS.find((one) => one.name === name) ?? VIEWS[0], parameters };
}

/** Changes parameters of the view that is shown. */
function change(parameters) {
  const now = wanted();
  const kept = address.withoutTables(address.valuesByName(now.parameters));
  const before = location.href;
  location.hash = address.link(now.view.name, { ...kept, ...parameters });
  if (location.href === before) show();
}

// The keyboard goes on where it was: in the field that was used, or else at the start of the view.
function focusAgain(main, field) {
  const again = field && main.querySelector(`[name="${CSS.escape(field)}"]`);
  (again || main).focus({ preventScroll: true });
}

function showNav(current) {
  replace(
    byId("nav"),
    VIEWS.map(({ name, title }) =>
      h("a", { href: lastOf(name), "aria-current": name === current ? "page" : null }, title),
    ),
  );
}

// Where each view was left, so that going back to it does not lose it.
const last = new Map();
function lastOf(name) {
  return last.get(name) ?? address.link(name);
}
function keepLast(view) {
  last.set(view.name, location.hash || address.link(view.name));
  byId("main").dataset.address = location.hash; // for whoever waits for the view
  showNav(view.name);
}

let asked = "";
function showStatus(waiting) {
  byId("status").textContent = waiting.length > 0 ? `Computing: ${[...new Set(waiting)].join(", ")} \u2026` : asked;
}

let round = 0;
let shownView = null;
async function show(event) {
  giveUp();
  round += 1;
  const mine = round;
  const { view, parameters } = wanted();
  keepLast(view);
  document.title = `${view.title} \u00b7 varve`;
  const main = byId("main");
  main.setAttribute("aria-busy", "true");
  asked = "";
  showStatus([]);
  let content;
  let store = {};
  try {
    content = await view.show({ get: (name) => parameters.get(name) ?? "", all: (name) => parameters.getAll(name), change });
    store = await ask("store");
  } catch (error) {
    if (error.name === "AbortError") return;
    content = h("p", { class: "error", role: "alert" }, printable(error.message));
  }
  if (mine !== round) return;
  if (store.path) byId("store").textContent = printable(store.path);
  // Every view is then of an old snapshot.
  const warning = store.warning && h("p", { class: "error", role: "alert" }, printable(store.warning));
  const held = main.contains(document.activeElement) && document.activeElement;
  replace(main, h("h2", { class: "view-title" }, view.title), warning, content);
  if (held || event?.type === "hashchange") focusAgain(main, held.name);
  if (shownView !== view) scrollTo(0, 0);
  shownView = view;
  main.removeAttribute("aria-busy");
  main.dataset.ready = String(round); // for whoever waits for the view
  asked = `Asked at ${time(new Date())}.`;
  showStatus(stillWaiting());
}

function setTheme(theme) {
  if (theme) {
    document.documentElement.dataset.theme = theme;
  } else {
    delete document.documentElement.dataset.theme;
  }
}

function savedTheme() {
  try {
    return localStorage.getItem("varve-theme");
  } catch {
    return null; // the browser keeps nothing
  }
}

function switchTheme() {
  const prefersDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (prefersDark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  setTheme(next);
  try {
    localStorage.setItem("varve-theme", next);
  } catch {
    // It holds until the page is closed.
  }
}

function showKeys() {
  replace(byId("help-list"), KEYS.map(([key, does]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, does))));
  byId("help").showModal();
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (event.target.closest("input, select, textarea")) return;
  const view = VIEWS[Number(event.key) - 1];
  if (view) location.hash = lastOf(view.name);
  else if (event.key === "r") show();
  else if (event.key === "t") switchTheme();
  else if (event.key === "?") showKeys();
  else if (event.key === "/") byId("main").querySelector("input")?.focus();
  else if (event.key === "[") byId("main").querySelector("[rel=prev]")?.click();
  else if (event.key === "]") byId("main").querySelector("[rel=next]")?.click();
  else return;
  event.preventDefault();
}

function start() {
  setTheme(savedTheme());
  byId("theme").addEventListener("click", switchTheme);
  byId("refresh").addEventListener("click", show);
  byId("keys").addEventListener("click", showKeys);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // its fragment would be taken for a view
    byId("main").focus();
  });
  onWaiting(showStatus);
  address.onNoted(() => keepLast(wanted().view));
  addEventListener("hashchange", show);
  addEventListener("keydown", press);
  show();
}

start();
