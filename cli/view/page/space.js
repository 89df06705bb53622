// SPDX-License-Identifier: Apache-2.0
// Space: what each step took, how it is stored, what sharing saves, and what a policy would free.

import { ask } from "./api.js";
import { barChart, lineChart } from "./charts.js";
import { h } from "./dom.js";
import { bytes, count, printable, share, time } from "./format.js";
import { damage, empty, field, form, later, section, stepLink } from "./parts.js";
import { facts, pagedTable, table } from "./table.js";

const RULES = ["keep-last", "keep-every", "keep-best", "keep-within", "keep-tag"];

export async function showSpace({ get, all, change }) {
  const space = await ask("space");
  if (space.steps === 0) return empty();
  return [
    damage(space.errors),
    stepsChart(space),
    later(statsSections(), "Sizes and codecs"),
    later(sharingSection(), "Sharing"),
    await forgetSection(get, all, change).catch(failed),
  ];
}

// A damaged store may lack the list of its runs.
function failed(error) {
  if (error.name === "AbortError") throw error;
  return section("What forget would free", h("p", { class: "error" }, printable(error.message)));
}

function stepsChart(space) {
  const name = (bin) => (bin.first === bin.last ? bin.first : `${bin.first} to ${bin.last}`);
  const series = [
    ["logical", "logical_bytes"],
    ["new", "new_bytes"],
    ["stored", "stored_bytes"],
  ].map(([title, key]) => ({
    name: title,
    points: space.bins.map((bin, i) => ({ x: i, y: bin[key], title: `${name(bin)}: ${title} ${bytes(bin[key])}` })),
  }));
  return lineChart("Bytes by step", {
    series,
    log: true,
    xTitle: "step, in the order in which they were saved",
    yTitle: "bytes of a step",
    isBytes: true,
    xText: (i) => space.bins[i]?.first ?? "",
    note:
      "logical: the bytes of a checkpoint as the trainer sees them. new: chunks that the store did not have. " +
      "stored: what these take, encoded. The scale is logarithmic, so steps that added nothing have no mark there." +
      (space.steps_a_bin > 1 ? ` Each point is the mean of ${space.steps_a_bin} steps that follow each other.` : ""),
  });
}

async function statsSections() {
  const stats = await ask("stats");
  const saved = Number(stats.logical_bytes) - Number(stats.unique_bytes);
  return [
    section(
      "The whole store",
      facts([
        ["steps", count(stats.steps)],
        ["logical", bytes(stats.logical_bytes)],
        ["unique", `${bytes(stats.unique_bytes)} (${share(stats.unique_bytes, stats.logical_bytes)} of logical)`],
        ["saved by sharing", `${bytes(saved)} (${share(saved, stats.logical_bytes)} of logical)`],
        ["stored", `${bytes(stats.stored_bytes)} (${share(stats.stored_bytes, stats.unique_bytes)} of unique)`],
        ["pending", bytes(stats.pending_bytes)],
        ["on disk", `${bytes(stats.disk_bytes)} in ${count(stats.files)} files`],
      ]),
      (stats.warnings ?? []).map((warning) => h("p", { class: "error" }, warning)),
    ),
    usesSection("Predictors", "Bytes by predictor", "predictor", "chunks", stats.by_codec),
    usesSection("Coders", "Bytes by coder", "coder", "planes", stats.by_coder),
  ];
}

function usesSection(title, caption, what, parts, uses) {
  const rows = Object.entries(uses).map(([name, use]) => ({ name, ...use }));
  if (rows.length === 0) return null;
  return section(
    title,
    barChart(caption, {
      wholeName: "raw",
      partName: "stored",
      rows: rows.map((row) => ({
        name: row.name,
        whole: Number(row.raw_bytes),
        part: Number(row.stored_bytes),
        text: `${bytes(row.raw_bytes)}, ${share(row.stored_bytes, row.raw_bytes)}`,
      })),
    }),
    table({
      caption: `${caption}, as numbers`,
      rows,
      columns: [
        { title: what, value: (row) => row.name },
        { title: parts, value: (row) => row[parts], show: (row) => count(row[parts]), right: true },
        { title: "raw", value: (row) => row.raw_bytes, show: (row) => bytes(row.raw_bytes), right: true },
        { title: "stored", value: (row) => row.stored_bytes, show: (row) => bytes(row.stored_bytes), right: true },
        { title: "stored of raw", value: (row) => share(row.stored_bytes, row.raw_bytes), right: true },
      ],
    }),
  );
}

async function sharingSection() {
  const sharing = await ask("sharing");
  return section(
    "Sharing",
    barChart("New bytes of a step, by group of tensors", {
      wholeName: "all bytes of the group",
      partName: "new ones, which the step before does not have",
      rows: sharing.groups.map((group) => ({
        name: group.name,
        whole: Number(group.bytes),
        part: Number(group.new_bytes),
        text: `${bytes(group.bytes)}, ${share(group.new_bytes, group.bytes)} new`,
      })),
      note: `The mean of ${count(sharing.checkpoints)} steps, each compared with the step before it in its run.`,
    }),
  );
}

async function forgetSection(get, all, change) {
  const runs = await ask("runs");
  const controls = form("What forget would do", [
    field("Run", "run", get("run") || "main", { choices: runs.map((run) => run.run) }),
    field("Keep last", "keep-last", get("keep-last"), { hint: "3" }),
    field("Keep every", "keep-every", get("keep-every"), { hint: "1000" }),
    severalFields("Keep best", "keep-best", all("keep-best"), "loss:3"),
    field("Keep within", "keep-within", get("keep-within"), { hint: "7d" }),
    severalFields("Keep tag", "keep-tag", all("keep-tag"), "release, or *"),
  ], change, "Foretell");
  const rules = Object.fromEntries(RULES.map((rule) => [rule, all(rule).filter(Boolean)]).filter(([, values]) => values.length > 0));
  return section(
    "What forget would free",
    h("p", { class: "note" }, "A step stays if one of the rules keeps it. Nothing is dropped here."),
    controls,
    Object.keys(rules).length > 0 && later(forgetResult(get("run") || "main", rules), "What forget would free"),
  );
}

// A rule of which forget takes several: a field for each, and an empty one.
function severalFields(label, name, values, hint) {
  const shown = values.filter(Boolean);
  return [...shown, ""].map((value, i) => field(i === 0 ? label : `${label}, also`, name, value, { hint }));
}

function shellWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

async function forgetResult(run, rules) {
  const { path } = await ask("store");
  let whole = null;
  const decisions = await pagedTable({
    caption: `What forget would do with the steps of ${run}`,
    ask: async ({ offset, limit }) => {
      whole = await ask("forget", { run, ...rules, offset, limit });
      return whole.decisions;
    },
    columns: [
      { title: "step", value: (row) => row.step, show: (row) => stepLink(row, String(row.step)), right: true },
      { title: "saved", value: (row) => row.created, show: (row) => time(row.created) },
      { title: "decision", value: (row) => (row.keep ? "keep" : "drop") },
      { title: "reasons", value: (row) => row.reasons.join(", "), wide: true },
    ],
  });
  const words = Object.entries(rules).flatMap(([rule, values]) => values.map((value) => `--${rule} ${shellWord(value)}`));
  return [
    facts([
      ["would drop", `${count(whole.num_dropped)} of ${count(whole.decisions.total)} steps`],
      ["would come back at once", bytes(whole.freed_bytes)],
      ["would come back later", `${bytes(whole.pending_bytes)}, by later drops or by reclaim --all`],
    ]),
    (whole.warnings ?? []).map((warning) => h("p", { class: "error" }, warning)),
    h("p", {}, "To do it: ", h("code", {}, `varve -s ${shellWord(path)} forget --run ${shellWord(run)} ${words.join(" ")}`)),
    decisions,
  ].flat();
}
