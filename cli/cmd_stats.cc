// SPDX-License-Identifier: Apache-2.0
//
// varve stats: what the store holds and how well it shares.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "varve/store.h"

namespace varve::cli {
namespace {

nlohmann::ordered_json ToObject(const StoreStats& stats) {
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

Outcome RunStats(const Context& context, const Store& store) {
  const auto stats = store.Stats();
  if (!stats.ok()) return stats.status();
  context.json() ? context.PrintJson(ToObject(*stats)) : context.PrintText(ToText(*stats));
  return {};
}

constexpr char kNotes[] =
    R"(JSON: format_version runs steps chunks logical_bytes unique_bytes stored_bytes
pending_bytes disk_bytes files by_codec)";

}  // namespace

void AddStats(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("stats", "Show sizes, sharing and codecs");
  verb->footer(kNotes);
  context.OnReading(verb, [&context](const Store& store) { return RunStats(context, store); });
}

}  // namespace varve::cli
