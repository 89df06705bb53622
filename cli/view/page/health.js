// SPDX-License-Identifier: Apache-2.0
// Health: is the store whole, what waits, and who is not done.

import { ask } from "./api.js";
import { h, replace } from "./dom.js";
import { bytes, count, printable, stepName, time } from "./format.js";
import { later, section } from "./parts.js";
import { facts, table } from "./table.js";

export async function showHealth() {
  const [store, check] = await Promise.all([ask("store"), ask("check")]);
  return [
    facts([
      ["store", store.path],
      ["kind", { store: "a store", group: "the root of a group of ranks", remote: "a remote store" }[store.kind]],
      ["varve", store.version],
    ]),
    checkSection(check),
    later(rest(), "Space and saves"),
  ];
}

function checkSection(check) {
  const place = h("div", { role: "status" }, checkWords(check));
  const button = h("button", { type: "button" }, "Check now");
  button.addEventListener("click", async () => {
    button.disabled = true;
    replace(place, h("p", { class: "note" }, "checking \u2026"));
    try {
      replace(place, checkWords(await ask("check", { start: 1 })));
    } catch (error) {
      replace(place, h("p", { class: "error" }, printable(error.message)));
    }
    button.disabled = false;
  });
  return section("Check", place, button,
    h("p", { class: "note" }, "It verifies records, counts and that each chunk is there, as varve check does. varve check --read-data also reads every chunk."));
}

function checkWords(check) {
  if (!check) return h("p", {}, "This page has not checked the store yet.");
  const { report } = check;
  return [
    h("p", { class: report.ok ? "good" : "error" }, report.ok ? "\u2713 No errors." : `\u2717 ${count(report.errors.length)} errors.`),
    facts([
      ["checked", time(check.finished)],
      ["took", `${check.seconds.toFixed(1)} s`],
      ["steps", count(report.steps)],
      ["tensors", count(report.tensors)],
      ["chunks", count(report.chunks)],
    ]),
    report.errors.slice(0, 100).map((error) => h("p", { class: "error" }, printable(error))),
    report.errors.length > 100 && h("p", { class: "note" }, "The first 100 errors. varve check lists all."),
    report.warnings.slice(0, 100).map((warning) => h("p", { class: "note" }, `Warning: ${printable(warning)}`)),
  ];
}

async function rest() {
  const { stats, error, group, uncommitted, snapshots, open_snapshot: open, warning } = await ask("health");
  return [
    stats ? spaceSection(stats) : h("p", { class: "error" }, printable(error)),
    group && groupSection(group),
    uncommitted && uncommittedSection(uncommitted),
    snapshots && snapshotSection(snapshots, open),
    warning && h("p", { class: "error" }, `Snapshots cannot be listed: ${printable(warning)}`),
  ].filter(Boolean);
}

function spaceSection(stats) {
  return section(
    "Space that waits",
    facts([
      ["pending", `${bytes(stats.pending_bytes)} of dead chunks, which reclaim gives back`],
      ["on disk", `${bytes(stats.disk_bytes)} in ${count(stats.files)} files`],
      ["format", `version ${stats.format_version}`],
    ]),
    (stats.warnings ?? []).map((warning) => h("p", { class: "error" }, printable(warning))),
  );
}

function groupSection(group) {
  return section(
    "Group",
    facts([
      ["ranks", count(group.ranks)],
      ["epoch", count(group.epoch)],
      ["members", count(group.members)],
      ["files of the log", count(group.log_files)],
      ["open saves", count(group.open_saves.length)],
    ]),
    group.open_saves.length > 0 && table({
      caption: "Open saves",
      rows: group.open_saves,
      columns: [
        { title: "step", value: stepName },
        { title: "waits for", wide: true,
          value: (save) => (save.missing_ranks.length > 0 ? `rank ${save.missing_ranks.join(", ")}` : "the commit") },
      ],
    }),
  );
}

function uncommittedSection({ saves, files, bytes: size, error }) {
  if (error) return section("Open saves", h("p", { class: "error" }, printable(error)));
  return section(
    "Open saves",
    facts([
      ["saves that have written", count(saves)],
      ["written so far", `${bytes(size)} in ${count(files)} ${files === 1 ? "file" : "files"}`],
    ]),
    files > 0 && h("p", { class: "note" }, "A writer has not committed these, or left them when it died. The next writer removes what was left."),
  );
}

function snapshotSection(snapshots, open) {
  return section("Snapshots", table({
    caption: "Snapshots at the URL",
    rows: snapshots.toReversed(),
    columns: [
      { title: "snapshot", value: (row) => row.snapshot, right: true },
      { title: "pushed", value: (row) => row.created, show: (row) => time(row.created) },
      { title: "bytes", value: (row) => row.total_bytes, show: (row) => bytes(row.total_bytes), right: true },
      { title: "shown here", value: (row) => (String(row.snapshot) === open ? "yes" : "") },
    ],
  }));
}
