// SPDX-License-Identifier: Apache-2.0
// Diff: which layers and tensors differ between two steps, and by how much.

import { link } from "./address.js";
import { ask } from "./api.js";
import { barChart, strip } from "./charts.js";
import { h, replace } from "./dom.js";
import { bytes, count, number, printable, share, stepName } from "./format.js";
import { empty, field, form, later, newestStep, section, stepLink } from "./parts.js";
import { facts, pagedTable } from "./table.js";

const DRAWN_LAYERS = 40;
// Frozen layers that a line names. The table has all.
const NAMED_LAYERS = 12;
// So much is compared without being asked for. It takes about a second.
const COMPARED_BYTES = 512 * 2 ** 20;

export async function showDiff({ get, change }) {
  const [before, after] = await chosen(get);
  const chooser = form("Two steps", [
    field("Before", "before", before, { hint: "main@10" }),
    field("After", "after", after, { hint: "latest" }),
    field("Names", "glob", get("glob"), { hint: "*.weight" }),
    field("Layers by", "layers", get("layers"), { choices: [["", "changed share"], ["frozen", "frozen first"], ["norm", "largest relative norm"], ["name", "name"]] }),
  ], change);
  if (!after) return empty();
  if (!before) return [chooser, h("p", { class: "note" }, "There is one step only. Choose two.")];
  const compareAll = () => change({ values: "all" });
  const asked = { before, after, glob: get("glob"), values: get("values") === "all" ? "all" : 1 };
  return [chooser, later(differences(asked, get("layers"), compareAll), "Differences")];
}

// What the table shows at first.
const FIRST_ROWS = { sort: "bytes", order: "down", limit: 50 };

// The values of many tensors take long, so all else is shown before.
async function differences(asked, layersBy, compareAll) {
  const first = await ask("diff", { ...asked, ...FIRST_ROWS });
  const content = await parts(asked, first, layersBy, compareAll);
  if (first.values_of === "all" || 2 * Number(first.changed_bytes) > COMPARED_BYTES) return content;
  const note = h("p", { class: "warning", role: "note" }, "The values of all tensors are being compared. Norms and new NaN follow.");
  const place = h("div", { "aria-busy": "true" }, note, content);
  withAllValues({ ...asked, values: "all" }, layersBy, compareAll).then(
    (all) => replace(place, all),
    (error) => replace(note, error.name === "AbortError" ? "" : `The values cannot be compared: ${error.message}`),
  ).finally(() => place.removeAttribute("aria-busy"));
  return place;
}

async function withAllValues(asked, layersBy, compareAll) {
  return parts(asked, await ask("diff", { ...asked, ...FIRST_ROWS }), layersBy, compareAll);
}

async function parts(asked, diff, layersBy, compareAll) {
  const { before, after } = asked;
  const rows = await pagedTable({
    caption: `Tensors that differ between ${before} and ${after}`,
    ...FIRST_ROWS,
    ask: ({ offset, limit, sort, order }) => ask("diff", { ...asked, sort, order, offset, limit }),
    columns: columns(before, after, diff.values_of === "all"),
  });
  return [
    summary(diff, compareAll),
    await layers(diff, layersBy),
    section("Tensors", rows),
    names("Added", diff.added, diff.num_added),
    names("Removed", diff.removed, diff.num_removed),
  ].flat();
}

// The newest step and its parent, where nothing else is asked for.
async function chosen(get) {
  const after = get("after") || (await newestStep());
  if (get("before") || !after) return [get("before"), after];
  const { parent } = await ask("show", { step: after });
  if (parent) return [stepName(parent), after];
  const near = await ask("near", { step: after });
  return [near.before ? stepName(near.before) : "", after];
}

function summary(diff, compareAll) {
  return [
    facts([
      ["before", h("span", {}, stepLink(diff.before))],
      ["after", h("span", {}, stepLink(diff.after))],
      ["changed", `${count(diff.total)} tensors in ${bytes(diff.changed_bytes)}`],
      ["unchanged", `${count(diff.num_unchanged)} tensors`],
      ["added", count(diff.num_added)],
      ["removed", count(diff.num_removed)],
    ]),
    diff.values_of !== "all" && 2 * Number(diff.changed_bytes) > COMPARED_BYTES && h("p", { class: "warning", role: "note" },
      diff.values_of === "rows"
        ? `The changed tensors are too large to compare all values: the page decodes ${bytes(diff.max_bytes)} at most. The table compares those of its rows, and layers have no norm.`
        : `No values are compared, because the page decodes ${bytes(diff.max_bytes)} at most unless it is told to. Ask for fewer names, or for all.`,
      " ",
      h("button", { type: "button", onclick: compareAll }, `Compare all ${bytes(diff.changed_bytes)}`)),
  ];
}

const changedShare = (layer) => (Number(layer.bytes) > 0 ? Number(layer.changed_bytes) / Number(layer.bytes) : 0);
const isFrozen = (layer) => Number(layer.changed_tensors) + Number(layer.added_tensors) + Number(layer.removed_tensors) === 0;
const isNew = (layer) => Number(layer.tensors) > 0 && Number(layer.added_tensors) === Number(layer.tensors);

// What became of a layer, in one word, or the share of its bytes that changed.
function fate(layer) {
  if (isFrozen(layer)) return "frozen";
  if (Number(layer.tensors) === 0) return "removed";
  return isNew(layer) ? "new" : share(layer.changed_bytes, layer.bytes);
}

function barText(layer) {
  const norm = normOf(layer) >= 0 ? `, largest norm ${number(layer.largest_norm)}` : "";
  return fate(layer) + norm + (layer.new_nans ? `, ${layer.new_nans} NaN` : "");
}

// How many layers are frozen, and which.
function frozenWords(sorted) {
  const frozen = sorted.filter(isFrozen);
  const words = `${count(frozen.length)} of ${count(sorted.length)} layers are frozen: no chunk of them changed.`;
  if (frozen.length === 0) return words;
  const more = frozen.length - NAMED_LAYERS;
  const names = frozen.slice(0, NAMED_LAYERS).map((layer) => printable(layer.name)).join(", ");
  return `${words} ${more > 0 ? `The first are ${names}, and there are ${count(more)} more.` : `They are ${names}.`}`;
}
// Norms may be the texts "Infinity" and "NaN".
const normOf = (layer) => (layer.largest_norm === null || layer.largest_norm === undefined ? -1 : Number(layer.largest_norm));

async function layers(diff, by) {
  const byName = (a, b) => a.name.localeCompare(b.name, "en", { numeric: true });
  const order = {
    "": (a, b) => changedShare(b) - changedShare(a) || byName(a, b),
    frozen: (a, b) => isFrozen(b) - isFrozen(a) || changedShare(a) - changedShare(b) || byName(a, b),
    norm: (a, b) => normOf(b) - normOf(a) || byName(a, b),
    name: byName,
  }[by] ?? byName;
  const sorted = diff.layers.toSorted(order);
  const drawn = sorted.slice(0, DRAWN_LAYERS);
  return section(
    "Layers",
    sorted.length > drawn.length && strip(`All layers between ${stepName(diff.before)} and ${stepName(diff.after)}, by name`, {
      cells: sorted.toSorted(byName).map((layer) => (
        { share: changedShare(layer), isNone: isFrozen(layer), title: `${layer.name}: ${barText(layer)}` })),
      noneName: "frozen",
      shareName: "changed share, from little to all",
    }),
    barChart(`Changed share of layers between ${stepName(diff.before)} and ${stepName(diff.after)}`, {
      wholeName: "all of the layer",
      partName: "changed chunks and new tensors",
      rows: drawn.map((layer) => ({
        name: layer.name,
        glob: layer.glob,
        whole: 1,
        part: changedShare(layer),
        text: barText(layer),
      })),
      href: (row) => link("diff", { before: stepName(diff.before), after: stepName(diff.after), glob: row.glob }),
      note: `${frozenWords(sorted)} A norm is the largest relative norm of the changes of one tensor.` +
        (sorted.length > drawn.length ? ` The bars are the first ${drawn.length} layers.` : ""),
    }),
    await pagedTable({
      caption: "Layers, as numbers",
      key: "layers-",
      ask: async ({ offset, limit }) => ({ rows: sorted.slice(offset, offset + limit), total: sorted.length }),
      columns: [
        { title: "layer", value: (layer) => layer.name, wide: "name" },
        { title: "changed tensors", value: (layer) => layer.changed_tensors, show: (layer) => `${count(layer.changed_tensors)} of ${count(layer.tensors)}`, right: true },
        { title: "added", value: (layer) => layer.added_tensors, right: true },
        { title: "removed", value: (layer) => layer.removed_tensors, right: true },
        { title: "bytes", value: (layer) => layer.bytes, show: (layer) => bytes(layer.bytes), right: true },
        { title: "changed", value: (layer) => layer.changed_bytes, show: (layer) => bytes(layer.changed_bytes), right: true },
        { title: "changed share", value: fate, right: true },
        { title: "largest relative norm", value: (layer) => layer.largest_norm ?? "", show: (layer) => number(layer.largest_norm), right: true },
        { title: "new NaN", value: (layer) => layer.new_nans ?? "", right: true },
      ],
    }),
  );
}

function columns(before, after, sortsByNorm) {
  const value = (key) => (row) => row.values?.[key] ?? "";
  return [
    { title: "name", value: (row) => row.name, sort: "name", first: "up", wide: "name",
      show: (row) => h("a", { href: link("tensor", { step: after, name: row.name, beside: before }) }, printable(row.name)) },
    { title: "shard", value: (row) => row.shard, right: true },
    { title: "changed chunks", value: (row) => row.changed_chunks, show: (row) => `${count(row.changed_chunks)} of ${count(row.chunks)}`, sort: "chunks", right: true },
    { title: "changed bytes", value: (row) => row.changed_bytes, show: (row) => bytes(row.changed_bytes), sort: "bytes", right: true },
    { title: "changed elements", value: value("changed_elements"), right: true,
      show: (row) => (row.values ? `${count(row.values.changed_elements)} of ${count(row.values.elements)}` : row.reshaped ? "reshaped" : "") },
    { title: "largest", value: value("max_abs"), show: (row) => number(row.values?.max_abs), right: true },
    { title: "relative norm", value: value("relative_norm"), show: (row) => number(row.values?.relative_norm), right: true,
      sort: sortsByNorm ? "norm" : null },
    { title: "new NaN", value: value("new_nans"), right: true },
  ];
}

function names(title, shown, total) {
  if (!total) return null;
  return section(
    `${title}: ${count(total)}`,
    h("ul", { class: "names" }, shown.map((name) => h("li", {}, h("code", {}, printable(name))))),
    total > shown.length && h("p", { class: "note" }, `The first ${shown.length}. varve diff lists all.`),
  );
}
