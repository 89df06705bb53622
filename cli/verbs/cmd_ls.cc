// SPDX-License-Identifier: Apache-2.0
//
// varve ls: the tensors of a checkpoint.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/glob.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct LsOptions {
  std::string step;
  std::string glob = "*";
};

// All shards of one name: of tensors without layouts, type and shape are those of the first.
struct LsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t num_shards = 0;
  uint64_t logical_bytes = 0;
};

std::vector<LsEntry> Gather(std::vector<TensorInfo> tensors) {
  std::vector<LsEntry> entries;
  for (TensorInfo& tensor : tensors) {
    if (entries.empty() || entries.back().name != tensor.name) {
      entries.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape)});
    }
    entries.back().num_shards += tensor.num_shards;
    entries.back().logical_bytes += tensor.logical_bytes;
  }
  return entries;
}

nlohmann::ordered_json ToObject(const LsEntry& entry) {
  return {{"name", entry.name},
          {"dtype", DTypeName(entry.dtype)},
          {"shape", entry.shape},
          {"shards", entry.num_shards},
          {"logical_bytes", entry.logical_bytes}};
}

std::string ToText(const std::vector<LsEntry>& entries) {
  Table table({{"name"},
               {"dtype"},
               {"shape"},
               {"shards", Table::Align::kRight},
               {"bytes", Table::Align::kRight}});
  for (const LsEntry& entry : entries) {
    table.AddRow({entry.name, std::string(DTypeName(entry.dtype)), HumanShape(entry.shape),
                  std::to_string(entry.num_shards), HumanBytes(entry.logical_bytes)});
  }
  return table.ToString();
}

Outcome RunLs(const Context& context, const Store& store, const LsOptions& options) {
  const auto id = store.Resolve(options.step);
  if (!id.ok()) return id.status();
  const auto reader = store.OpenCheckpoint(id->run, id->step);
  if (!reader.ok()) return reader.status();
  auto tensors = ShardedReader::Of(**reader)->ListMatching(options.glob);
  if (!tensors.ok()) return tensors.status();
  const std::vector<LsEntry> entries = Gather(*std::move(tensors));
  if (entries.empty() && !IsGlob(options.glob)) return (*reader)->Find(options.glob).status();
  if (context.json()) {
    context.PrintJsonArray(entries.size(), [&](size_t i) { return ToObject(entries[i]); });
  } else {
    context.PrintText(ToText(entries));
  }
  return {};
}

constexpr char kNotes[] = R"(JSON: array of name dtype shape shards logical_bytes)";

}  // namespace

void AddLs(CLI::App& app, Context& context) {
  auto options = std::make_shared<LsOptions>();
  CLI::App* verb = app.add_subcommand("ls", "List the tensors of a checkpoint");
  verb->add_option("STEP", options->step, kStepHelp)->required();
  verb->add_option("GLOB", options->glob, "Only names that match; * stands for any characters");
  verb->footer(kNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunLs(context, store, *options); });
}

}  // namespace varve::internal::cli
