// SPDX-License-Identifier: Apache-2.0
//
// varve log: the steps at which tensors changed.
#include <CLI/CLI.hpp>
#include <cstdint>
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
#include "store/ops/history.h"
#include "store/read/sharded_reader.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct LogOptions {
  std::string name;  // or a pattern
  std::string run = "main";
};

struct TensorLog {
  std::string name;
  std::vector<TensorChange> changes;
};
struct Logs {
  std::vector<TensorLog> tensors;
  std::vector<std::string> errors;  // of a damaged store: what is left out
};

// A pattern is matched against the tensors of the newest step. Looking through all steps could take
// long, and a removed tensor can still be named in full.
Result<std::vector<std::string>> NamesOf(const Store& store, const LogOptions& options) {
  if (!IsGlob(options.name)) return std::vector{options.name};
  std::vector<std::string> names;
  VARVE_ASSIGN_OR_RETURN(const std::optional<uint64_t> newest, store.LatestStep(options.run));
  if (!newest) return names;
  VARVE_ASSIGN_OR_RETURN(const auto reader, ShardedReader::Open(store, options.run, *newest));
  VARVE_ASSIGN_OR_RETURN(const std::vector<TensorInfo> tensors, reader->ListMatching(options.name));
  for (const TensorInfo& tensor : tensors) {
    const bool is_new = names.empty() || names.back() != tensor.name;  // once for all its shards
    if (is_new) names.push_back(tensor.name);
  }
  return names;
}

Result<Logs> Load(const Store& store, const LogOptions& options) {
  Logs logs;
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(store, options));
  for (const std::string& name : names) {
    auto changes = store.Log(options.run, name);
    if (changes.ok()) {
      logs.tensors.push_back({name, *std::move(changes)});
      continue;
    }
    if (changes.status().code() != StatusCode::kCorruption) return changes.status();
    auto known = LogKnown(store, options.run, name);
    if (!known.ok() || (known->changes.empty() && names.size() == 1)) return changes.status();
    // The damage may have gone since, as when a writer has dropped the step.
    if (known->errors.empty()) known->errors.push_back(changes.status().message());
    logs.tensors.push_back({name, std::move(known->changes)});
    for (const std::string& error : known->errors) logs.errors.push_back(name + ": " + error);
  }
  return logs;
}

nlohmann::ordered_json ToArray(const std::vector<TensorLog>& logs) {
  auto array = nlohmann::ordered_json::array();
  for (const TensorLog& log : logs) {
    for (const TensorChange& change : log.changes) array.push_back(ToJson(log.name, change));
  }
  return array;
}

std::string ToText(const std::vector<TensorLog>& logs) {
  constexpr auto kRight = Table::Align::kRight;
  Table table(
      {{"name"}, {"step", kRight}, {"chunks", kRight}, {"bytes", kRight}, {"stored", kRight}});
  for (const TensorLog& log : logs) {
    for (const TensorChange& change : log.changes) {
      table.AddRow({log.name, std::to_string(change.step),
                    CountOf(change.changed_chunks, change.num_chunks),
                    HumanBytes(change.changed_bytes), HumanBytes(change.stored_bytes)});
    }
  }
  return table.ToString();
}

Outcome RunLog(const Context& context, const Store& store, const LogOptions& options) {
  const auto logs = Load(store, options);
  if (!logs.ok()) return logs.status();
  context.json() ? context.PrintJson(ToArray(logs->tensors))
                 : context.PrintText(ToText(logs->tensors));
  if (logs->errors.empty()) return {};
  return Outcome::Incomplete("the log leaves out", logs->errors);
}

constexpr char kLogNotes[] =
    R"(If a step is damaged, the log leaves it out, an error names it, and the exit
code is 3. A change at such a step counts as a change at the next step of the
log.

JSON: an array of name step changed_chunks chunks changed_bytes stored_bytes)";

}  // namespace

nlohmann::ordered_json ToJson(const std::string& tensor, const TensorChange& change) {
  return {{"name", tensor},
          {"step", change.step},
          {"changed_chunks", change.changed_chunks},
          {"chunks", change.num_chunks},
          {"changed_bytes", change.changed_bytes},
          {"stored_bytes", change.stored_bytes}};
}

void AddLog(CLI::App& app, Context& context) {
  auto options = std::make_shared<LogOptions>();
  CLI::App* verb =
      app.add_subcommand("log", "List the steps at which a tensor changed, and what each cost");
  verb->add_option("NAME", options->name,
                   "The tensor, or a pattern for those of the newest step; * stands for any "
                   "characters")
      ->required();
  verb->add_option("--run", options->run, "The run to look at")
      ->type_name("RUN")
      ->capture_default_str();
  verb->footer(kLogNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunLog(context, store, *options); });
}

}  // namespace varve::internal::cli
