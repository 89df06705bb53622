// SPDX-License-Identifier: Apache-2.0
// A tensor: how its values are spread, what they look like, and when they changed.

import { link } from "./address.js";
import { ask } from "./api.js";
import { heatMap, histogram, lineChart } from "./charts.js";
import { h } from "./dom.js";
import { bytes, count, countOf, elementText, number, printable, shape, share, stepName } from "./format.js";
import { field, form, later, newestStep, section, stepLink, tensorLink } from "./parts.js";
import { neighbours } from "./step.js";
import { facts, pagedTable, table } from "./table.js";

const SHOWN_VALUES = 16;
// Changes whose values are compared. Each reads the tensor twice.
const COMPARED_CHANGES = 8;
const DRAWN_CHANGES = 50;
const DRAWN_SHARDS = 6;
const WORDED_SHARDS = 8;

export async function showTensor({ get, change }) {
  const step = get("step") || (await newestStep());
  const name = get("name");
  const slice = get("slice");
  const chooser = form("Tensor", [
    field("Step", "step", step, { hint: "latest, best:loss, main@100" }),
    field("Name", "name", name, { hint: "model.embed.weight" }),
    field("Slice", "slice", slice, { hint: "0:10,:,-3:" }),
    field("Shard", "shard", get("shard"), { hint: "if there are several" }),
    field("Beside step", "beside", get("beside"), { hint: "another step" }),
  ], change);
  if (!name || !step) {
    return [chooser, h("p", { class: "note" }, "Choose a tensor here, or from the table of a ", h("a", { href: link("step", { step }) }, "step"), ".")];
  }
  const asked = { name, slice, shard: get("shard"), values: SHOWN_VALUES };
  let found;
  try {
    found = await look(step, asked);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return [chooser, h("p", { class: "error", role: "alert" }, printable(error.message))];
  }
  const id = stepName(found);
  return [
    chooser,
    later(neighbours(id, (to) => link("tensor", { ...asked, values: null, step: to, beside: get("beside") })), "Steps beside it"),
    about(found, name, id),
    pictures(found, name, id),
    later(values(found, asked, name, id, get("beside")), "Values"),
    later(history(found, name), "History"),
    later(shards(found, name, id), "Shards"),
  ];
}

// Asks again for the start of a tensor that is too large to be looked at in one piece.
async function look(step, asked) {
  const found = await ask("tensor", { step, ...asked });
  if (!found.first_slice) return found;
  const start = await ask("tensor", { step, ...asked, slice: found.first_slice });
  return { ...start, cut_to: found.first_slice, whole: found.too_large };
}

function about(found, name, id) {
  const { tensor, get, look: seen } = found;
  return [
    found.cut_to && h("p", { class: "warning", role: "note" },
      `The numbers and pictures are of the slice ${found.cut_to} alone: ${bytes(get.logical_bytes)} of ${bytes(found.whole)}. ` +
      `The page looks at ${bytes(found.max_bytes)} at most.`),
    facts([
      ["tensor", h("code", {}, printable(name))],
      ["step", h("span", {}, stepLink(found, id))],
      ["dtype", get.dtype],
      ["shape", shape(tensor.shape)],
      ["slice", shape(get.shape) === shape(tensor.shape) ? "" : `of shape ${shape(get.shape)}`],
      ["bytes", bytes(tensor.logical_bytes)],
      ["role", tensor.role],
      ["derived from", tensor.derived_from && tensorLink(id, tensor.derived_from)],
      ["alias of", tensor.alias_of && tensorLink(id, tensor.alias_of)],
      ["digest", tensor.digest && h("code", {}, tensor.digest)],
      ["smallest", elementText(get.dtype)(get.min)],
      ["largest", elementText(get.dtype)(get.max)],
      ["mean", number(get.mean)],
      ["norm", seen && number(seen.norm)],
      ["NaN", count(get.nan)],
      ["infinite", seen && count(seen.infinite)],
      ["zeros", seen && `${count(seen.zeros)} (${share(seen.zeros, seen.elements)})`],
    ]),
  ];
}

function pictures(found, name, id) {
  const { look: seen } = found;
  if (!seen) return h("p", { class: "note" }, "There is no picture of complex values.");
  if (seen.histogram.counts.length === 0) return h("p", { class: "note" }, "No value is finite, so there is no picture.");
  const { heat } = seen;
  return h("div", { class: "side-by-side" },
    histogram(`Values of ${name} at ${id}`, {
      low: Number(seen.histogram.low), high: Number(seen.histogram.high), counts: seen.histogram.counts,
      note: seen.infinite + found.get.nan > 0 ? "Values that are infinite or NaN are left out." : null,
    }),
    heatMap(`Picture of ${name} at ${id}`, {
      ...heat,
      note: `The last axis lies across, all others down. Each of the ${heat.rows} x ${heat.columns} cells is the mean of its neighbours.`,
    }));
}

async function values(found, asked, name, id, beside) {
  const shown = elementText(found.get.dtype);
  const rows = found.get.values.map((value, i) => ({ i, value }));
  const columns = [
    { title: "element", value: (row) => row.i, right: true },
    { title: id, value: (row) => row.value, show: (row) => shown(row.value), right: true },
  ];
  if (!beside) return section("First values", table({ caption: `First values of ${name}`, rows, columns }));
  const slice = found.cut_to ?? asked.slice;
  const [other, diff] = await Promise.all([
    ask("tensor", { step: beside, ...asked, slice }),
    ask("diff", { before: beside, after: id, name, values: 1, limit: 1000 }),
  ]);
  const otherId = stepName(other);
  rows.forEach((row, i) => {
    row.other = other.get?.values[i] ?? "";
  });
  columns.push(
    { title: otherId, value: (row) => row.other, show: (row) => shown(row.other), right: true },
    { title: "difference", right: true, value: (row) => difference(row), show: (row) => shown(difference(row)) },
  );
  return section(
    `Beside ${otherId}`,
    facts([
      ["norm", `${number(found.look?.norm)} and ${number(other.look?.norm)}`],
      ["mean", `${number(found.get.mean)} and ${number(other.get?.mean)}`],
      ["NaN", `${count(found.get.nan)} and ${count(other.get?.nan ?? 0)}`],
      ["differences", diffWords(diff)],
    ]),
    table({ caption: `First values of ${name}, beside ${otherId}`, rows, columns }),
  );
}

function difference(row) {
  return typeof row.value === "number" && typeof row.other === "number" ? row.value - row.other : "";
}

// What diff says about one tensor, shard by shard.
function diffWords(diff) {
  if (diff.num_added) return "the other step does not have it";
  if (diff.num_removed) return "this step does not have it";
  if (diff.rows.length === 0) return "none: the bytes are equal";
  const ofShard = (row) => (diff.rows.length > 1 ? `shard ${row.shard}: ` : "") + rowWords(row);
  const lines = diff.rows.slice(0, WORDED_SHARDS).map(ofShard);
  const more = Number(diff.total) - lines.length;
  if (more > 0) lines.push(`and ${countOf(more, "shard")} more`);
  return lines.map((line) => h("span", { class: "line" }, line));
}

function rowWords(row) {
  if (row.reshaped) return "another shape or dtype";
  const chunks = `${count(row.changed_chunks)} of ${count(row.chunks)} chunks`;
  if (!row.values) return chunks;
  return `${count(row.values.changed_elements)} of ${count(row.values.elements)} elements, relative norm ${number(row.values.relative_norm)}, ` +
    `largest ${number(row.values.max_abs)}, new NaN ${count(row.values.new_nans)}`;
}

async function history(found, name) {
  const { run } = found;
  let newest = null; // the plots show the newest changes, whichever rows the table shows
  const changes = await pagedTable({
    caption: `Steps of ${run} at which ${name} changed`,
    order: "down",
    limit: DRAWN_CHANGES,
    ask: async ({ offset, limit, order }) => {
      const answer = await ask("log", { run, name, order, offset, limit });
      if (offset === 0 && order === "down") newest ??= answer;
      return answer;
    },
    columns: [
      { title: "step", value: (row) => row.step, show: (row) => h("a", { href: link("tensor", { step: `${run}@${row.step}`, name }) }, String(row.step)), right: true },
      { title: "changed chunks", value: (row) => row.changed_chunks, show: (row) => `${count(row.changed_chunks)} of ${count(row.chunks)}`, right: true },
      { title: "changed bytes", value: (row) => row.changed_bytes, show: (row) => bytes(row.changed_bytes), right: true },
      { title: "stored", value: (row) => row.stored_bytes, show: (row) => bytes(row.stored_bytes), right: true },
    ],
  });
  newest ??= await ask("log", { run, name, order: "down", limit: DRAWN_CHANGES });
  const rows = newest.rows.toReversed();
  return section(
    "History",
    rows.length > 1 && lineChart(`Bytes of ${name} that changed`, {
      xTitle: "step", yTitle: "bytes", isBytes: true,
      series: [["changed", "changed_bytes"], ["stored", "stored_bytes"]].map(([title, key]) => ({
        name: title,
        points: rows.map((row) => ({ x: Number(row.step), y: Number(row[key]), title: `step ${row.step}: ${title} ${bytes(row[key])}` })),
      })),
      note: newest.total > rows.length ? `The last ${rows.length} of ${count(newest.total)} changes.` : null,
    }),
    changes,
    rows.length > 1 && later(amounts(run, name, rows), "How much it changed"),
  );
}

// How much each of the last changes changed. Each compares two steps.
async function amounts(run, name, rows) {
  const pairs = rows.slice(-COMPARED_CHANGES - 1);
  const found = [];
  let leftOut = 0;
  for (let i = 1; i < pairs.length; i += 1) {
    const diff = await ask("diff", { before: `${run}@${pairs[i - 1].step}`, after: `${run}@${pairs[i].step}`, name, values: 1, limit: 1000 });
    for (const row of diff.rows) found.push({ from: pairs[i - 1].step, step: pairs[i].step, ...row });
    leftOut += Number(diff.total) - diff.rows.length;
  }
  const known = found.filter((row) => row.values);
  const shards = [...new Set(known.map((row) => row.shard))];
  return [
    pairs.length > 2 && known.length > 0 && lineChart(`Relative norm of the changes of ${name}`, {
      xTitle: "step", yTitle: "relative norm",
      series: shards.slice(0, DRAWN_SHARDS).map((shard) => ({
        name: `shard ${shard}`,
        points: known.filter((row) => row.shard === shard).map((row) => (
          { x: Number(row.step), y: Number(row.values.relative_norm), title: `step ${row.step}, shard ${shard}: ${number(row.values.relative_norm)}` })),
      })),
      note: shards.length > DRAWN_SHARDS ? `The first ${DRAWN_SHARDS} of ${count(shards.length)} shards. The table has all.` : null,
    }),
    table({
      caption: `How much ${name} changed, in its last ${countOf(pairs.length - 1, "change")}`,
      rows: found,
      columns: [
        { title: "step", value: (row) => row.step, right: true },
        { title: "against", value: (row) => row.from, right: true },
        { title: "shard", value: (row) => row.shard, right: true },
        { title: "changed elements", value: (row) => row.values?.changed_elements ?? "", right: true,
          show: (row) => (row.values ? `${count(row.values.changed_elements)} of ${count(row.values.elements)}` : "not compared") },
        { title: "relative norm", value: (row) => row.values?.relative_norm ?? "", show: (row) => number(row.values?.relative_norm), right: true },
        { title: "largest", value: (row) => row.values?.max_abs ?? "", show: (row) => number(row.values?.max_abs), right: true },
        { title: "new NaN", value: (row) => row.values?.new_nans ?? "", right: true },
      ],
    }),
    leftOut > 0 && h("p", { class: "note" }, `${countOf(leftOut, "more row")} of other shards are not shown. varve diff lists all.`),
  ].filter(Boolean);
}

async function shards(found, name, id) {
  const get = ({ offset, limit }) => ask("shards", { step: id, name, offset, limit });
  const first = await get({ offset: 0, limit: 1 });
  if (first.total <= 1 && first.rows[0]?.rank === undefined) return null;
  return section("Shards", await pagedTable({
    caption: `Shards of ${name} at ${id}`,
    key: "shards-",
    ask: get,
    columns: [
      ...(first.rows[0]?.rank === undefined ? [] : [{ title: "rank", value: (row) => row.rank, right: true }]),
      { title: "shard", value: (row) => row.shard, right: true },
      { title: "dtype", value: (row) => row.dtype },
      { title: "shape", value: (row) => shape(row.shape) },
      { title: "bytes", value: (row) => row.logical_bytes, show: (row) => bytes(row.logical_bytes), right: true },
      { title: "holds", value: (row) => row.layout, wide: true },
    ],
  }));
}
