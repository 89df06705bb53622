// SPDX-License-Identifier: Apache-2.0
// A step: what it is, its tensors as boxes and as a table, and which rank holds what.

import { link } from "./address.js";
import { ask } from "./api.js";
import { barChart, figure, treemap } from "./charts.js";
import { h, s } from "./dom.js";
import { bytes, count, countOf, integer, metrics, number, printable, shape, share, stepName, time } from "./format.js";
import { empty, field, form, later, newestStep, section, stepLink, tensorLink } from "./parts.js";
import { facts, pagedTable } from "./table.js";

const ROLES = ["parameter", "optimizer", "buffer", "other"];
// Ranks that are drawn. The table has all.
const MAX_RANKS = 64;
const MAX_IN_A_ROW = 6;

export async function showStep({ get, change }) {
  const asked = get("step") || (await newestStep());
  const chooser = form("Step", [
    field("Step", "step", asked, { hint: "latest, best:loss, main@100" }),
    field("Names", "glob", get("glob"), { hint: "*.weight" }),
  ], ({ step, glob }) => change({ step, glob, prefix: "" }));
  if (!asked) return [empty()];
  let shown;
  try {
    shown = await ask("show", { step: asked });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return [chooser, h("p", { class: "error", role: "alert" }, printable(error.message))];
  }
  const step = stepName(shown);
  return [
    chooser,
    later(neighbours(step, (to) => link("step", { step: to, glob: get("glob") })), "Steps beside it"),
    about(shown),
    later(boxes(step, get("prefix")), "Tensors as boxes"),
    later(tensors(step, get("glob")), "Tensors"),
    later(ranks(step, shown), "Ranks"),
    state(shown),
  ];
}

/** Links to the steps before and after, which keys follow. */
export async function neighbours(step, href) {
  const near = await ask("near", { step });
  const to = (id, rel, title) => (id ? h("a", { href: href(stepName(id)), rel }, `${title} ${stepName(id)}`) : null);
  return h("p", { class: "near" }, to(near.before, "prev", "\u2190"), " ", to(near.after, "next", "\u2192"));
}

function about(shown) {
  return [
    facts([
      ["step", stepName(shown)],
      ["created", time(shown.created)],
      ["parent", shown.parent && h("span", {}, stepLink(shown.parent), " (",
        h("a", { href: link("diff", { before: stepName(shown.parent), after: stepName(shown) }) }, "differences"), ")")],
      ["tensors", count(shown.tensors)],
      ["logical", bytes(shown.logical_bytes)],
      ["new", `${bytes(shown.new_bytes)} (${share(shown.new_bytes, shown.logical_bytes)})`],
      ["stored", bytes(shown.stored_bytes) + (Number(shown.new_bytes) > 0 ? ` (${share(shown.stored_bytes, shown.new_bytes)} of new)` : "")],
      ["metrics", metrics(shown.metrics)],
      ["tags", shown.tags.join(" ")],
      ["items", shown.items.join(" ")],
    ]),
    (shown.unfinished ?? []).map((save) =>
      h("p", { class: "error" }, `unfinished save of ${printable(stepName(save))}, waits for rank ${save.missing_ranks.join(", ")}`)),
  ];
}

async function boxes(step, prefix) {
  const tree = await ask("tree", { step, prefix });
  const title = tree.prefix ? `Tensors of ${step} below ${tree.prefix}` : `Tensors of ${step} by bytes`;
  return section(
    "Tensors by bytes",
    crumbs(step, tree.prefix),
    treemap(title, {
      legend: h("ul", { class: "legend" }, [...ROLES.map((role) => [role, role]), ["mixed", "several roles"]].map(([look, name]) =>
        h("li", {}, s("svg", { width: 14, height: 12, "aria-hidden": "true" }, s("rect", { width: 14, height: 12, class: `box ${look}` })), ` ${name}`))),
      boxes: tree.boxes.map((box) => ({
        name: box.name ? box.name.slice(tree.prefix.length) : `${box.boxes} others`,
        value: Number(box.bytes),
        detail: bytes(box.bytes),
        look: box.role ?? "mixed",
        title: `${box.name || `${box.boxes} others`}: ${bytes(box.bytes)}${box.is_tensor ? "" : `, ${count(box.tensors)} tensors`}`,
        href: !box.name ? null : box.is_tensor ? link("tensor", { step, name: box.name }) : link("step", { step, prefix: box.name }),
      })),
      note: `${count(tree.tensors)} tensors, ${bytes(tree.bytes)}. A box opens what is in it.`,
    }),
  );
}

// The way back up from a prefix.
function crumbs(step, prefix) {
  if (!prefix) return null;
  const parts = prefix.match(/[^./]*[./]/g) ?? [];
  const links = parts.map((part, i) => h("a", { href: link("step", { step, prefix: parts.slice(0, i + 1).join("") }) }, printable(part)));
  return h("nav", { class: "crumbs", "aria-label": "Groups of tensors" }, h("a", { href: link("step", { step }) }, "all"), " ", links);
}

async function tensors(step, glob) {
  const place = await pagedTable({
    caption: glob ? `Tensors of ${step} like ${glob}` : `Tensors of ${step}`,
    sort: "name",
    order: "up",
    ask: ({ offset, limit, sort, order }) => ask("tensors", { step, glob, sort, order, offset, limit }),
    above: (answer) => [
      h("p", { class: "note" }, `${count(answer.total)} tensors, ${bytes(answer.logical_bytes)}. ` +
        "stored: encoded bytes of the chunks that a tensor is read from, whichever step saved them."),
      answer.errors.map((error) => h("p", { class: "error" }, printable(error))),
    ],
    columns: [
      { title: "name", value: (row) => row.name, show: (row) => tensorLink(step, row.name), sort: "name", first: "up", wide: "name" },
      { title: "dtype", value: (row) => row.dtype, sort: "dtype", first: "up" },
      { title: "shape", value: (row) => shape(row.shape) },
      { title: "role", value: (row) => row.role, sort: "role", first: "up" },
      { title: "shards", value: (row) => row.shards, sort: "shards", right: true },
      { title: "bytes", value: (row) => row.logical_bytes, show: (row) => bytes(row.logical_bytes), sort: "bytes", right: true },
      { title: "stored", value: (row) => row.stored_bytes ?? "?", show: (row) => (row.stored_bytes === null ? "?" : bytes(row.stored_bytes)), sort: "stored", right: true },
      { title: "ratio", value: (row) => (row.stored_bytes === null ? "?" : share(row.stored_bytes, row.logical_bytes)), right: true },
      { title: "last changed", value: (row) => row.last_changed ?? "", right: true },
      { title: "digest", value: (row) => row.digest, show: (row) => h("code", { title: row.digest }, row.digest.slice(0, 12)) },
    ],
  });
  return section("Table of tensors", place);
}

async function ranks(step, shown) {
  const get = ({ offset, limit }) => ask("ranks", { step, offset, limit });
  const held = await get({ offset: 0, limit: MAX_RANKS });
  const topology = held.topology;
  if (!held.has_ranks && held.total <= 1 && !topology) return null;
  const what = held.has_ranks ? "rank" : "shard";
  return section(
    "Topology",
    topology && facts(Object.entries(topology).map(([name, value]) => [name, String(value)])),
    topology && topologyDrawing(step, topology, held),
    barChart(`Bytes that each ${what} of ${step} holds`, {
      wholeName: "all tensors",
      partName: "optimizer",
      rows: held.rows.map((row) => ({
        name: `${what} ${row[what]}`,
        whole: Number(row.bytes),
        part: Number(row.bytes_by_role.optimizer ?? 0),
        text: `${bytes(row.bytes)}, ${countOf(row.shards, "shard")}`,
      })),
      note: held.total > held.rows.length ? `The first ${MAX_RANKS} of ${count(held.total)}. The table has more.` : null,
    }),
    await pagedTable({
      caption: held.has_ranks ? `What each rank of ${step} holds` : `Shards of ${step} by number`,
      key: "ranks-",
      ask: get,
      columns: [
        { title: what, value: (row) => row[what], right: true },
        { title: "shards", value: (row) => row.shards, show: (row) => count(row.shards), right: true },
        { title: "bytes", value: (row) => row.bytes, show: (row) => bytes(row.bytes), right: true },
        ...ROLES.map((role) => ({
          title: role, right: true,
          value: (row) => row.bytes_by_role[role] ?? 0,
          show: (row) => bytes(row.bytes_by_role[role] ?? 0),
        })),
      ],
    }),
  );
}

const degreeOf = (topology, kind) => Math.max(1, Number(topology[kind] ?? 1));

/**
 * The place of a rank in each kind of parallelism: neighbours differ in the first kind of the order. Ranks that share
 * experts are ranks of dp and cp, so ep is no axis of its own. Experts have a grid in which ep takes the place of cp and
 * of a part of dp, as Megatron has it.
 */
export function coordinates(topology, rank) {
  const kinds = topology.rank_order.split("-");
  const walk = (degrees) => {
    const place = {};
    let rest = rank;
    for (const kind of kinds) {
      const degree = degrees[kind] ?? degreeOf(topology, kind);
      place[kind] = rest % degree;
      rest = Math.floor(rest / degree);
    }
    return place;
  };
  const [dp, cp, ep] = ["dp", "cp", "ep"].map((kind) => degreeOf(topology, kind));
  return { ...walk({ ep: 1 }), ep: walk({ cp: 1, dp: Math.max(1, (dp * cp) / ep) }).ep };
}

// How many ranks lie side by side: those of one place in the outermost kind, such as a stage of the pipeline, or a part
// of them if they are too many.
function ranksInARow(topology, world, most) {
  const outermost = topology.rank_order.split("-").findLast((kind) => kind !== "ep" && degreeOf(topology, kind) > 1);
  const side = Math.max(1, Math.floor(Number(topology.world_size) / degreeOf(topology, outermost)));
  const fits = [...Array(most + 1).keys()].findLast((ranks) => ranks > 1 && side % ranks === 0);
  return Math.min(world, side === 1 ? most : fits ?? most);
}

// Ranks lie in the order of their numbers, from left to right and then down.
function topologyDrawing(step, topology, held) {
  const world = Math.min(Number(topology.world_size), MAX_RANKS);
  if (world <= 1) return null;
  const bytesOf = new Map(held.rows.map((row) => [row.rank ?? row.shard, Number(row.bytes)]));
  const kinds = topology.rank_order.split("-").filter((kind) => Number(topology[kind] ?? 1) > 1);
  const boxWidth = 110;
  const perRow = ranksInARow(topology, world, MAX_IN_A_ROW);
  const height = Math.ceil(world / perRow) * 54 + 8;
  const most = Math.max(...bytesOf.values(), 1);
  const svg = s("svg", { viewBox: `0 0 760 ${height}`, role: "img", class: "plot", "aria-label": printable(`Ranks of ${step}`) });
  for (let rank = 0; rank < world; rank += 1) {
    const [x, y] = [(rank % perRow) * (boxWidth + 8) + 4, Math.floor(rank / perRow) * 54 + 4];
    const held = bytesOf.get(rank) ?? 0;
    const place = coordinates(topology, rank);
    svg.append(
      s("rect", { x, y, width: boxWidth, height: 46, class: "rank" }),
      s("rect", { x, y: y + 41, width: (held / most) * boxWidth, height: 5, class: "bar part" }),
      s("text", { x: x + 6, y: y + 16 }, `rank ${rank}: ${bytes(held)}`),
      s("text", { x: x + 6, y: y + 32, class: "small" }, kinds.map((kind) => `${kind} ${place[kind]}`).join(" ")),
    );
  }
  const isCut = Number(topology.world_size) > world;
  return figure("Which rank is where", svg, {
    note: isCut ? `The first ${world} of ${count(topology.world_size)} ranks.` : null,
  });
}

function state(shown) {
  if (!shown.trainer_state) return null;
  const { extra, rng, lr_scheduler: schedule, loss_scaler: scaler, ...rest } = shown.trainer_state;
  const text = (value) => (Array.isArray(value) ? value.join(", ") : (Number.isInteger(value) ? integer(value) : number(value)));
  const part = (title, values) =>
    Object.keys(values).length > 0 && [h("h4", {}, title), facts(Object.entries(values).map(([name, value]) => [printable(name), text(value)]))];
  return section(
    "Trainer state",
    facts(Object.entries(rest).map(([name, value]) => [name, text(value)])),
    part("Learning rate schedule", schedule),
    part("Loss scaler", scaler),
    part("Extra", extra),
    rng.length > 0 && h("p", { class: "note" }, countOf(rng.length, "random number generator")),
  );
}
