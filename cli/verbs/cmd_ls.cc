// SPDX-License-Identifier: Apache-2.0
//
// varve ls: the tensors of a checkpoint.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/glob.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/print.h"
#include "cli/verbs/reports.h"
#include "store/ops/stored_size.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

std::vector<LsEntry> Gather(std::vector<TensorInfo> tensors) {
  std::vector<LsEntry> entries;
  for (TensorInfo& tensor : tensors) {
    if (entries.empty() || entries.back().name != tensor.name) {
      entries.push_back({{.name = std::move(tensor.name),
                          .dtype = tensor.dtype,
                          .shape = std::move(tensor.shape),
                          .role = tensor.role}});
      entries.back().content = tensor.content;
    } else {
      entries.back().content = {};
    }
    entries.back().num_shards += tensor.num_shards;
    entries.back().logical_bytes += tensor.logical_bytes;
  }
  return entries;
}

// Returns nullopt for a tensor that cannot be read.
std::optional<uint64_t> StoredBytes(const StoredSizes& sizes, const LsEntry& entry) {
  const auto found = sizes.by_tensor.find(entry.name);
  return found == sizes.by_tensor.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

Result<Listing> ListTensors(const ShardedReader& reader, const LsOptions& options) {
  Listing listing;
  VARVE_ASSIGN_OR_RETURN(auto tensors, reader.ListMatching(options.glob));
  listing.entries = Gather(std::move(tensors));
  if (listing.entries.empty() && !IsGlob(options.glob)) return reader.Find(options.glob).status();
  if (options.stored) {
    VARVE_ASSIGN_OR_RETURN(listing.stored, MeasureStored(reader, options.glob));
  }
  return listing;
}

ordered_json ToJson(const Listing& listing, const LsEntry& entry) {
  ordered_json object = {{"name", entry.name},
                         {"dtype", DTypeName(entry.dtype)},
                         {"shape", entry.shape},
                         {"shards", entry.num_shards},
                         {"logical_bytes", entry.logical_bytes}};
  if (!listing.stored) return object;
  const auto stored = StoredBytes(*listing.stored, entry);
  object["stored_bytes"] = stored ? ordered_json(*stored) : ordered_json();
  return object;
}

namespace {

Result<Listing> Load(const Store& store, const LsOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const CheckpointId id, store.Resolve(options.step));
  VARVE_ASSIGN_OR_RETURN(const auto reader, ShardedReader::Open(store, id.run, id.step));
  return ListTensors(*reader, options);
}

std::string TableText(const Listing& listing) {
  constexpr auto kRight = Table::Align::kRight;
  std::vector<Table::Column> columns = {
      {"name"}, {"dtype"}, {"shape"}, {"shards", kRight}, {"bytes", kRight}};
  if (listing.stored) columns.push_back({"stored", kRight});
  Table table(std::move(columns));
  for (const LsEntry& entry : listing.entries) {
    std::vector<std::string> row = {entry.name, std::string(DTypeName(entry.dtype)),
                                    HumanShape(entry.shape), std::to_string(entry.num_shards),
                                    HumanBytes(entry.logical_bytes)};
    if (listing.stored) {
      const auto stored = StoredBytes(*listing.stored, entry);
      row.push_back(stored ? HumanBytes(*stored) : "?");
    }
    table.AddRow(std::move(row));
  }
  return table.ToString();
}

std::string TotalText(const Listing& listing) {
  uint64_t bytes = 0;
  for (const LsEntry& entry : listing.entries) bytes += entry.logical_bytes;
  std::string text = Count(listing.entries.size(), "tensor") + ", " + HumanBytes(bytes);
  if (!listing.stored) return text + "\n";
  text += ", stored in " + HumanBytes(listing.stored->total);
  const size_t num_missing = listing.stored->errors.size();
  if (num_missing > 0) text += " without " + Count(num_missing, "tensor") + " that cannot be read";
  return text + "\n";
}

Outcome RunLs(const Context& context, const Store& store, const LsOptions& options) {
  const Result<Listing> listing = Load(store, options);
  if (!listing.ok()) return listing.status();
  const std::vector<LsEntry>& entries = listing->entries;
  if (context.json()) {
    context.PrintJsonArray(entries.size(), [&](size_t i) { return ToJson(*listing, entries[i]); });
  } else {
    context.PrintText(TableText(*listing));
    if (!context.quiet()) context.PrintText(TotalText(*listing));
  }
  if (!listing->stored) return {};
  return Outcome::Incomplete("the stored bytes leave out", listing->stored->errors);
}

constexpr char kLsNotes[] =
    R"(The last line sums up what is listed. -q leaves it out.

--stored counts the encoded bytes of the chunks that a tensor is read from,
whichever step saved them, but not those of the chunks that these are deltas of.
What is a rounded copy of another tensor (--derive) counts there alone. Chunks
that several tensors share count for each of them, and once in the sum. If the
chunks of a tensor cannot be told, it shows "?", and exit code 3 names it.

JSON: array of name dtype shape shards logical_bytes, with --stored also
stored_bytes, which is null if it cannot be told)";

}  // namespace

void AddLs(CLI::App& app, Context& context) {
  auto options = std::make_shared<LsOptions>();
  CLI::App* verb = app.add_subcommand("ls", "List the tensors of a checkpoint");
  verb->add_option("STEP", options->step, kStepHelp)->required();
  verb->add_option("GLOB", options->glob, "Only names that match; * stands for any characters");
  verb->add_flag("--stored", options->stored, "Also show what each tensor takes in the store");
  verb->footer(kLsNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunLs(context, store, *options); });
}

}  // namespace varve::internal::cli
