// SPDX-License-Identifier: Apache-2.0
// Runs: where they were forked, their steps, and how their metrics went.

import { link } from "./address.js";
import { ask } from "./api.js";
import { lineage, lineChart } from "./charts.js";
import { h } from "./dom.js";
import { bytes, count, metrics, number, stepName, time } from "./format.js";
import { damage, empty, field, form, section, stepLink } from "./parts.js";
import { pagedTable, table } from "./table.js";

// Runs that the graph and the curves show. The tables have all.
const MAX_RUNS = 30;

export async function showRuns({ get, change }) {
  const [runs, curves] = await Promise.all([
    ask("lineage"),
    ask("curves", { metric: get("metric") }),
  ]);
  if (runs.every((run) => !run.first)) return empty();
  // A run stands below the one that it was forked from.
  runs.sort((a, b) => (String(a.first?.created) < String(b.first?.created) ? -1 : 1));
  // In the same order everywhere, so that a run looks the same.
  const places = new Map(runs.map((run, i) => [run.run, i]));
  curves.runs.sort((a, b) => places.get(a.run) - places.get(b.run));
  return [
    damage(curves.errors),
    lineage("Lineage of runs", {
      runs: runs.slice(0, MAX_RUNS),
      href: (run, step) => link("step", { step: `${run}@${step}` }),
      note: runs.length > MAX_RUNS
        ? `The first ${MAX_RUNS} of ${count(runs.length)} runs. A line goes from the first step of a run to its newest.`
        : "A line goes from the first step of a run to its newest. Strokes are tags.",
    }),
    runsTable(runs),
    await curveSection(curves, get, change),
    await stepsTable(runs, get, change),
  ];
}

function runsTable(runs) {
  return table({
    caption: "Runs",
    rows: runs,
    columns: [
      { title: "run", value: (run) => run.run, wide: true },
      { title: "steps", value: (run) => run.steps, show: (run) => count(run.steps), right: true },
      { title: "forked from", value: (run) => (run.forked_from ? stepName(run.forked_from) : ""), show: (run) => stepLink(run.forked_from) },
      { title: "first", value: (run) => run.first?.step ?? "", right: true },
      { title: "newest", value: (run) => run.last?.step ?? "", right: true,
        show: (run) => (run.last ? stepLink({ run: run.run, step: run.last.step }, String(run.last.step)) : "") },
      { title: "saved", value: (run) => time(run.last?.created) },
    ],
  });
}

async function curveSection(curves, get, change) {
  if (curves.metrics.length === 0) {
    return section("Metrics", h("p", { class: "note" }, "No step has a metric."));
  }
  const highest = get("best") === "highest";
  const shown = curves.runs.slice(0, MAX_RUNS);
  const controls = form("Metric", [
    field("Metric", "metric", curves.metric, { choices: curves.metrics }),
    field("Best is the", "best", get("best"), { choices: [["", "lowest"], ["highest", "highest"]] }),
    field("Scale", "scale", get("scale"), { choices: [["", "linear"], ["log", "logarithmic"]] }),
  ], change);
  return section("Metrics", controls, chart(curves, shown, highest, get("scale") === "log"), bestTable(curves, highest));
}

function chart(curves, shown, highest, log) {
  const series = shown.map((run) => {
    const best = highest ? run.highest : run.lowest;
    const y = highest ? run.highest_value : run.lowest_value;
    return {
      name: run.run,
      points: run.points.map((one) => ({
        x: Number(one.first),
        y: one.mean,
        low: one.min,
        high: one.max,
        title: `${run.run}@${one.first}${one.values > 1 ? ` to ${one.last}: mean` : ":"} ${number(one.mean)}`,
      })),
      best: best !== null && { x: Number(best), y: Number(y), title: `best of ${run.run}: step ${best}, ${number(y)}` },
    };
  });
  const most = Math.max(...shown.map((run) => run.steps_a_point), 1);
  const leftOut = shown.reduce((sum, run) => sum + run.left_out, 0);
  const note = [
    most > 1 && `A point is the mean of up to ${most} steps, and the band goes from their lowest to their highest value.`,
    "A star is the best step of its run.",
    leftOut > 0 && `${leftOut} values that are infinite or NaN are not drawn.`,
    curves.runs.length > shown.length && `The first ${shown.length} of ${curves.runs.length} runs are drawn.`,
  ];
  return lineChart(`${curves.metric} by step`, {
    series, log, xTitle: "step", yTitle: curves.metric, note: note.filter(Boolean).join(" "),
  });
}

function bestTable(curves, highest) {
  const side = highest ? "highest" : "lowest";
  return table({
    caption: `Best ${curves.metric} of each run (${side})`,
    rows: curves.runs,
    columns: [
      { title: "run", value: (run) => run.run },
      { title: "step", value: (run) => run[side] ?? "", right: true,
        show: (run) => (run[side] === null ? "" : stepLink({ run: run.run, step: run[side] }, String(run[side]))) },
      { title: side, right: true,
        value: (run) => run[`${side}_value`] ?? "", show: (run) => number(run[`${side}_value`]) },
    ],
  });
}

async function stepsTable(runs, get, change) {
  const run = get("run");
  const sort = get("sort");
  const controls = form("Steps", [
    field("Run", "run", run, { choices: [["", "all"], ...runs.map((one) => one.run)] }),
    field("Best first by", "sort", sort, { hint: "loss, or accuracy:max" }),
  ], change);
  const steps = await pagedTable({
    caption: run ? `Steps of ${run}` : "Steps of all runs",
    // By a metric the best comes first. Else the newest.
    order: sort ? "up" : "newest",
    ask: ({ offset, limit, order }) => ask("steps", { run, sort, order, offset, limit }),
    columns: [
      { title: "step", value: stepName, show: (step) => stepLink(step) },
      { title: "created", value: (step) => step.created, show: (step) => time(step.created) },
      { title: "tensors", value: (step) => step.tensors, show: (step) => count(step.tensors), right: true },
      { title: "logical", value: (step) => step.logical_bytes, show: (step) => bytes(step.logical_bytes), right: true },
      { title: "new", value: (step) => step.new_bytes, show: (step) => bytes(step.new_bytes), right: true },
      { title: "stored", value: (step) => step.stored_bytes, show: (step) => bytes(step.stored_bytes), right: true },
      { title: "metrics", value: (step) => metrics(step.metrics), wide: true },
      { title: "tags", value: (step) => step.tags.join(" "), wide: true },
      { title: "diff to parent", value: (step) => (step.parent ? stepName(step.parent) : ""),
        show: (step) => (step.parent
          ? h("a", { href: link("diff", { before: stepName(step.parent), after: stepName(step) }),
              "aria-label": `differences between ${stepName(step.parent)} and ${stepName(step)}` }, stepName(step.parent))
          : "") },
    ],
  });
  return section("Steps", controls, steps);
}
