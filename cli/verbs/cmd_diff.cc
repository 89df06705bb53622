// SPDX-License-Identifier: Apache-2.0
//
// varve diff: what differs between two checkpoints.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/glob.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "cli/verbs/reports.h"
#include "store/ops/history.h"
#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

struct DiffVerbOptions {
  std::string before;
  std::string after;
  std::string glob = "*";
  std::string other;  // the store of `after`. Empty = the same
  bool values = false;
};

ordered_json ToObject(const ValueDiff& values) {
  return {{"elements", values.num_elements},
          {"changed_elements", values.changed_elements},
          {"max_abs", ToJson(values.max_abs)},
          {"relative_norm", ToJson(values.relative_norm)},
          {"new_nans", values.new_nans}};
}

}  // namespace

ordered_json ToJson(const TensorDiff& tensor, bool with_values) {
  ordered_json object = {{"name", tensor.name},         {"shard", tensor.shard},
                         {"reshaped", tensor.reshaped}, {"changed_chunks", tensor.changed_chunks},
                         {"chunks", tensor.num_chunks}, {"changed_bytes", tensor.changed_bytes}};
  if (with_values) object["values"] = tensor.values ? ToObject(*tensor.values) : ordered_json();
  return object;
}

namespace {

ordered_json ToObject(const CheckpointDiff& diff, bool with_values) {
  ordered_json changed = ordered_json::array();
  for (const TensorDiff& tensor : diff.changed) changed.push_back(ToJson(tensor, with_values));
  return {{"added", diff.added},
          {"removed", diff.removed},
          {"changed", std::move(changed)},
          {"unchanged", diff.unchanged}};
}

std::vector<std::string> ToRow(const TensorDiff& tensor, bool with_values) {
  std::string name = tensor.name;
  if (tensor.shard > 0) name += " shard " + std::to_string(tensor.shard);
  std::vector<std::string> row = {tensor.reshaped ? "!" : "~", std::move(name),
                                  CountOf(tensor.changed_chunks, tensor.num_chunks),
                                  HumanBytes(tensor.changed_bytes)};
  if (!with_values) return row;
  if (!tensor.values) return row.insert(row.end(), {"-", "-", "-", "-"}), row;
  row.push_back(CountOf(tensor.values->changed_elements, tensor.values->num_elements));
  row.push_back(HumanNumber(tensor.values->max_abs));
  row.push_back(HumanNumber(tensor.values->relative_norm));
  row.push_back(std::to_string(tensor.values->new_nans));
  return row;
}

std::string TableText(const CheckpointDiff& diff, bool with_values) {
  constexpr auto kRight = Table::Align::kRight;
  std::vector<Table::Column> columns = {{""}, {"name"}, {"chunks", kRight}, {"bytes", kRight}};
  if (with_values) {
    columns.insert(
        columns.end(),
        {{"elements", kRight}, {"max |b-a|", kRight}, {"|b-a|/|a|", kRight}, {"new NaN", kRight}});
  }
  const size_t num_columns = columns.size();
  Table table(std::move(columns));
  const auto add_names = [&](const char* mark, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      std::vector<std::string> row = {mark, name};
      row.resize(num_columns);
      table.AddRow(std::move(row));
    }
  };
  add_names("-", diff.removed);
  add_names("+", diff.added);
  for (const TensorDiff& tensor : diff.changed) table.AddRow(ToRow(tensor, with_values));
  return table.ToString();
}

std::string ToText(const CheckpointDiff& diff, bool with_values) {
  uint64_t bytes = 0;
  uint64_t reshaped = 0;
  for (const TensorDiff& tensor : diff.changed) {
    bytes += tensor.changed_bytes;
    if (tensor.reshaped) ++reshaped;
  }
  std::string text;
  if (!diff.removed.empty() || !diff.added.empty() || !diff.changed.empty()) {
    text = TableText(diff, with_values);
  }
  text += std::to_string(diff.removed.size()) + " removed (-), " +
          std::to_string(diff.added.size()) + " added (+), " + std::to_string(diff.changed.size()) +
          " changed (~) in " + HumanBytes(bytes);
  if (reshaped > 0)
    text += ", " + std::to_string(reshaped) + " of them of another shape or type (!)";
  return text + ", " + std::to_string(diff.unchanged.size()) + " unchanged\n";
}

bool IsEmpty(const CheckpointDiff& diff) {
  return diff.added.empty() && diff.removed.empty() && diff.changed.empty() &&
         diff.unchanged.empty();
}

// The two checkpoints, and what differs.
struct Comparison {
  CheckpointId before;
  CheckpointId after;
  CheckpointDiff diff;
};

// The bar is gone when this returns.
Result<CheckpointDiff> DiffOfTwoStores(const Context& context, const ShardedReader& before,
                                       const ShardedReader& after, const DiffOptions& options) {
  ProgressBar progress("diff", context.quiet());
  return DiffCheckpoints(before, after, options, [&progress](uint64_t done, uint64_t total) {
    progress.Update(done, total);
  });
}

// Opens the later checkpoint of another store. Errors name the store.
Result<std::unique_ptr<ShardedReader>> OpenOther(const Store& other, const DiffVerbOptions& options,
                                                 CheckpointId* id) {
  const auto open = [&]() -> Result<std::unique_ptr<ShardedReader>> {
    VARVE_ASSIGN_OR_RETURN(*id, other.Resolve(options.after));
    return ShardedReader::Open(other, id->run, id->step);
  };
  auto reader = open();
  if (!reader.ok()) return reader.status().WithContext(options.other);
  return reader;
}

// `other` is the store of the later checkpoint, or null when both are in `store`.
Result<Comparison> Compare(const Context& context, const Store& store, const Store* other,
                           const DiffVerbOptions& options) {
  DiffOptions diff_options;
  diff_options.include = [&](std::string_view name) { return MatchesGlob(options.glob, name); };
  diff_options.values = options.values;
  Comparison found;
  VARVE_ASSIGN_OR_RETURN(found.before, store.Resolve(options.before));
  if (other == nullptr) {
    VARVE_ASSIGN_OR_RETURN(found.after, store.Resolve(options.after));
    VARVE_ASSIGN_OR_RETURN(found.diff, store.Diff(found.before, found.after, diff_options));
    return found;
  }
  VARVE_ASSIGN_OR_RETURN(const auto before,
                         ShardedReader::Open(store, found.before.run, found.before.step));
  VARVE_ASSIGN_OR_RETURN(const auto after, OpenOther(*other, options, &found.after));
  VARVE_ASSIGN_OR_RETURN(found.diff, DiffOfTwoStores(context, *before, *after, diff_options));
  return found;
}

Outcome RunDiff(const Context& context, const Store& store, const Store* other,
                const DiffVerbOptions& options) {
  const Result<Comparison> found = Compare(context, store, other, options);
  if (!found.ok()) return found.status();
  if (IsEmpty(found->diff) && !IsGlob(options.glob)) {
    return Status::NotFound("tensor \"" + options.glob + "\" is neither in step " +
                            HumanId(found->before) + " nor in step " + HumanId(found->after));
  }
  context.json() ? context.PrintJson(ToObject(found->diff, options.values))
                 : context.PrintText(ToText(found->diff, options.values));
  return {};
}

Outcome RunDiff(const Context& context, const Store& store, const DiffVerbOptions& options) {
  if (options.other.empty()) return RunDiff(context, store, nullptr, options);
  const auto other = context.OpenForReading(options.other);
  return other.ok() ? RunDiff(context, store, other->get(), options) : OpenOutcome(other.status());
}

constexpr char kDiffNotes[] =
    R"(--other compares with a step of another store. Chunks of a store and of its
backup are compared by their digests. Between other stores, all tensors that
both steps have are read and compared byte by byte.

JSON: added removed changed[name shard reshaped changed_chunks chunks
changed_bytes] unchanged; the others are arrays of names. With --values each of
changed has values: null when reshaped, else elements changed_elements max_abs
relative_norm new_nans)";

}  // namespace

void AddDiff(CLI::App& app, Context& context) {
  auto options = std::make_shared<DiffVerbOptions>();
  CLI::App* verb = app.add_subcommand("diff", "Show which tensors differ between two checkpoints");
  verb->add_option("STEP", options->before, kStepHelp)->required();
  verb->add_option("STEP2", options->after, "The checkpoint to compare it with, named alike")
      ->required();
  verb->add_option("GLOB", options->glob, "Only names that match; * stands for any characters");
  verb->add_option("--other", options->other, "The store of STEP2: its folder or URL")
      ->type_name("PATH");
  verb->add_flag("--values", options->values,
                 "Compare elements, too: how many differ, the largest difference, the norm of all "
                 "against that of the earlier values, and how many became NaN");
  verb->footer(kDiffNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunDiff(context, store, *options); });
}

}  // namespace varve::internal::cli
