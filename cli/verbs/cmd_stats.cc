// SPDX-License-Identifier: Apache-2.0
//
// varve stats: what the store holds and how well it shares, in numbers and as a picture.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/formats/output_file.h"
#include "cli/json.h"
#include "cli/print.h"
#include "cli/sharing.h"
#include "cli/verbs/plot.h"
#include "cli/verbs/reports.h"
#include "varve/store.h"

namespace varve::internal::cli {

nlohmann::ordered_json ToJson(const StoreStats& stats) {
  return {{"format_version", stats.format_version},
          {"runs", stats.num_runs},
          {"steps", stats.num_steps},
          {"chunks", stats.num_chunks},
          {"logical_bytes", stats.logical_bytes},
          {"unique_bytes", stats.unique_bytes},
          {"stored_bytes", stats.stored_bytes},
          {"pending_bytes", stats.pending_bytes},
          {"disk_bytes", stats.disk_bytes},
          {"files", stats.num_files},
          {"by_codec", ToJson(stats.by_codec)},
          {"by_coder", ToJson(stats.by_coder)}};
}

Result<std::vector<CheckpointInfo>> ListBySaving(const Store& store) {
  std::vector<CheckpointInfo> all;
  VARVE_ASSIGN_OR_RETURN(const std::vector<RunInfo> runs, store.ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_ASSIGN_OR_RETURN(const auto steps, store.ListCheckpoints(run.name));
    all.insert(all.end(), steps.begin(), steps.end());
  }
  std::stable_sort(all.begin(), all.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return a.created < b.created;
  });
  return all;
}

namespace {

struct StatsOptions {
  std::filesystem::path plot;
  bool force = false;
};

std::vector<std::string> Row(const std::string& name, uint64_t count, uint64_t raw_bytes,
                             uint64_t stored_bytes) {
  return {name, std::to_string(count), HumanBytes(raw_bytes), HumanBytes(stored_bytes),
          HumanShare(stored_bytes, raw_bytes)};
}

// Chunks by the codec of their frames, and the planes of these frames by their coder.
std::string CodecText(const StoreStats& stats) {
  constexpr auto kRight = Table::Align::kRight;
  Table codecs({{"codec"}, {"chunks", kRight}, {"raw", kRight}, {"stored", kRight}, {"", kRight}});
  for (const CodecUse& use : stats.by_codec) {
    codecs.AddRow(Row(use.codec, use.num_chunks, use.raw_bytes, use.stored_bytes));
  }
  Table coders({{"coder"}, {"planes", kRight}, {"raw", kRight}, {"stored", kRight}, {"", kRight}});
  for (const CoderUse& use : stats.by_coder) {
    coders.AddRow(Row(use.coder, use.num_planes, use.raw_bytes, use.stored_bytes));
  }
  return codecs.ToString() + "\n" + coders.ToString();
}

std::string ToText(const StoreStats& stats) {
  std::string text = "format   version " + std::to_string(stats.format_version) + "\n";
  text += "content  " + Count(stats.num_runs, "run") + ", " + Count(stats.num_steps, "step") +
          ", " + Count(stats.num_chunks, "chunk") + "\n";
  text += "logical  " + HumanBytes(stats.logical_bytes) + "\n";
  text += "unique   " + HumanBytes(stats.unique_bytes) + "  (" +
          HumanShare(stats.unique_bytes, stats.logical_bytes) + " of logical)\n";
  text += "stored   " + HumanBytes(stats.stored_bytes) + "  (" +
          HumanShare(stats.stored_bytes, stats.unique_bytes) + " of unique)\n";
  text += "pending  " + HumanBytes(stats.pending_bytes) + "\n";
  text +=
      "on disk  " + HumanBytes(stats.disk_bytes) + " in " + Count(stats.num_files, "file") + "\n";
  return stats.by_codec.empty() ? text : text + "\n" + CodecText(stats);
}

Status WritePlot(const std::string& path, const Store& store, const StoreStats& stats,
                 const StatsOptions& options) {
  PlotData data;
  data.title = "varve store " + path;
  data.stats = stats;
  VARVE_ASSIGN_OR_RETURN(data.checkpoints, ListBySaving(store));
  VARVE_ASSIGN_OR_RETURN(data.sharing, MeasureSharing(store));
  const bool is_page = options.plot.extension() == ".html";
  VARVE_ASSIGN_OR_RETURN(auto file, formats::OutputFile::Create(options.plot, options.force));
  VARVE_RETURN_IF_ERROR(file.Append(is_page ? PlotHtml(data) : PlotSvg(data)));
  return file.Commit();
}

Outcome RunStats(const Context& context, const std::string& path, const Store& store,
                 const StatsOptions& options) {
  const auto stats = store.Stats();
  if (!stats.ok()) return stats.status();
  nlohmann::ordered_json object = ToJson(*stats);
  std::string text = ToText(*stats);
  if (!options.plot.empty()) {
    const Status status = WritePlot(path, store, *stats, options);
    if (status.code() == StatusCode::kAlreadyExists) {
      return status.WithContext("use --force to overwrite");
    }
    if (!status.ok()) return status;
    object["plot"] = options.plot.string();
    text += "\npicture in " + Printable(options.plot.string()) + "\n";
  }
  if (!stats->warnings.empty()) object["warnings"] = stats->warnings;
  text += WarningsText(stats->warnings);
  context.json() ? context.PrintJson(object) : context.PrintText(text);
  return Outcome::Incomplete("the numbers leave out", stats->warnings);
}

Outcome RunStats(const Context& context, const StatsOptions& options) {
  const auto extension = options.plot.extension();
  if (!options.plot.empty() && extension != ".svg" && extension != ".html") {
    return Outcome::Usage("--plot: " + options.plot.string() + " ends in neither .svg nor .html");
  }
  std::string path;
  if (Outcome outcome = context.StoreOrUrl(&path); !outcome.ok()) return outcome;
  return context.ReadAnywhere(
      [&](const Store& store) { return RunStats(context, path, store, options); });
}

constexpr char kStatsNotes[] =
    R"(--plot draws, by step, what a checkpoint is and what it added to the store; by
group of tensors, how much of a checkpoint is shared with the one before it; and
raw and stored bytes by codec and coder. The file stands alone, opens in any
browser, and can be read without colour.

JSON: format_version runs steps chunks logical_bytes unique_bytes stored_bytes
pending_bytes disk_bytes files by_codec by_coder; with --plot also plot; if the
numbers leave something out also warnings)";

}  // namespace

void AddStats(CLI::App& app, Context& context) {
  auto options = std::make_shared<StatsOptions>();
  CLI::App* verb = app.add_subcommand("stats", "Show sizes, sharing and codecs");
  verb->footer(kStatsNotes);
  verb->add_option("--plot", options->plot, "Also draw a picture: x.svg or x.html")
      ->type_name("FILE");
  verb->add_flag("--force", options->force, "Overwrite an existing picture");
  context.OnAnything(verb, [&context, options] { return RunStats(context, *options); });
}

}  // namespace varve::internal::cli
