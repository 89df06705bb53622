// SPDX-License-Identifier: Apache-2.0
//
// varve show: what a checkpoint holds besides tensors.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/json.h"
#include "cli/print.h"
#include "cli/verbs/reports.h"
#include "objects/url.h"
#include "store/read/sharded_reader.h"
#include "varve/group.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using nlohmann::ordered_json;

struct ShowOptions {
  std::string step;
  std::string tensor;  // empty = the checkpoint
};

struct Shown {
  std::optional<std::vector<OpenSave>> unfinished;  // of the root of a group
  CheckpointInfo info;
  std::optional<TrainerProgress> state;
  std::optional<Topology> topology;
  std::vector<std::string> items;
};

// Returns the unfinished saves of a group, each with the ranks that are not done. nullopt = the
// path is not the root of a group.
Result<std::optional<std::vector<OpenSave>>> FindUnfinished(const std::string& path) {
  std::optional<std::vector<OpenSave>> unfinished;
  if (LooksLikeUrl(path) || !Group::IsRoot(path)) return unfinished;
  VARVE_ASSIGN_OR_RETURN(GroupStatus status, Group::ReadStatus(path));
  return unfinished = std::move(status.open_saves);
}

Result<Shown> Load(const Store& store, const std::string& path, const std::string& step) {
  Shown shown;
  VARVE_ASSIGN_OR_RETURN(const CheckpointId id, store.Resolve(step));
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(id.run, id.step));
  shown.info = reader->info();
  VARVE_ASSIGN_OR_RETURN(shown.state, reader->ReadTrainerProgress());
  VARVE_ASSIGN_OR_RETURN(shown.topology, reader->ReadTopology());
  VARVE_ASSIGN_OR_RETURN(shown.items, reader->ListBytes());
  VARVE_ASSIGN_OR_RETURN(shown.unfinished, FindUnfinished(path));
  return shown;
}

ordered_json ToArray(const std::vector<OpenSave>& saves) {
  auto array = ordered_json::array();
  for (const OpenSave& save : saves) {
    array.push_back(
        {{"run", save.id.run}, {"step", save.id.step}, {"missing_ranks", save.missing_ranks}});
  }
  return array;
}

ordered_json ToObject(const Shown& shown) {
  ordered_json object = ToJson(shown.info);
  object["trainer_state"] = shown.state ? ToJson(*shown.state) : ordered_json();
  object["topology"] = shown.topology ? ToJson(*shown.topology) : ordered_json();
  object["items"] = shown.items;
  if (shown.unfinished) object["unfinished"] = ToArray(*shown.unfinished);
  return object;
}

std::string Line(std::string title, const std::string& value) {
  title.resize(std::max<size_t>(title.size(), 17), ' ');
  return Printable(title + " " + value) + "\n";
}

std::string InfoText(const CheckpointInfo& info) {
  std::string text = Line("run", info.id.run);
  text += Line("step", std::to_string(info.id.step));
  text += Line("created", HumanTime(info.created));
  if (info.parent) text += Line("parent", HumanId(*info.parent));
  text += Line("tensors", std::to_string(info.num_tensors));
  text += Line("logical", HumanBytes(info.logical_bytes));
  text += Line("new", HumanBytes(info.new_bytes));
  text += Line("stored", HumanBytes(info.stored_bytes));
  if (!info.metrics.empty()) text += Line("metrics", HumanMetrics(info.metrics));
  if (!info.tags.empty()) text += Line("tags", Join(info.tags, " "));
  return text;
}

std::string UnfinishedText(const std::vector<OpenSave>& saves) {
  std::string text;
  for (const OpenSave& save : saves) {
    std::vector<std::string> ranks;
    for (const uint32_t rank : save.missing_ranks) ranks.push_back(std::to_string(rank));
    text += Line("unfinished",
                 HumanId(save.id) + (ranks.empty() ? ": waits for the commit"
                                                   : ": waits for rank " + Join(ranks, ", ")));
  }
  return text;
}

// Shows the parts of a JSON object, one a line. An empty part is left out.
std::string PartsText(const std::string& title, const ordered_json& object) {
  std::string text = "\n" + title + "\n";
  for (const auto& [key, value] : object.items()) {
    if (value.empty()) continue;
    text += Line("  " + key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

std::string ToText(const Shown& shown) {
  std::string text = InfoText(shown.info);
  if (!shown.items.empty()) text += Line("items", Join(shown.items, " "));
  if (shown.unfinished) text += UnfinishedText(*shown.unfinished);
  if (shown.topology) text += PartsText("topology", ToJson(*shown.topology));
  if (!shown.state) return text;
  ordered_json state = ToJson(*shown.state);
  const ordered_json extra = state["extra"];
  state.erase("extra");
  text += PartsText("trainer state", state);
  return extra.empty() ? text : text + PartsText("extra", extra);
}

Outcome RunShow(const Context& context, const Store& store, const ShowOptions& options) {
  std::string path;
  if (Outcome outcome = context.StoreOrUrl(&path); !outcome.ok()) return outcome;
  const auto shown = Load(store, path, options.step);
  if (!shown.ok()) return shown.status();
  context.json() ? context.PrintJson(ToObject(*shown)) : context.PrintText(ToText(*shown));
  return {};
}

Result<std::vector<StoredShard>> LoadShards(const Store& store, const std::string& step,
                                            const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const CheckpointId id, store.Resolve(step));
  VARVE_ASSIGN_OR_RETURN(const auto reader, ShardedReader::Open(store, id.run, id.step));
  return reader->FindStored(name);
}

std::string LayoutText(const TensorRecord& shard) {
  return shard.layout ? ToString(*shard.layout) : HumanShape(shard.shape);
}

ordered_json ToArray(const std::vector<StoredShard>& shards) {
  auto array = ordered_json::array();
  for (const StoredShard& shard : shards) {
    ordered_json& object = array.emplace_back(ordered_json::object());
    if (shard.rank) object["rank"] = *shard.rank;
    object["shard"] = shard.number;
    object["dtype"] = DTypeName(shard.record.dtype);
    object["shape"] = shard.record.shape;
    object["logical_bytes"] = shard.record.LogicalBytes();
    object["layout"] = LayoutText(shard.record);
  }
  return array;
}

std::string ToText(const std::vector<StoredShard>& shards) {
  constexpr auto kRight = Table::Align::kRight;
  const bool has_ranks = shards[0].rank.has_value();
  std::vector<Table::Column> columns = {
      {"shard", kRight}, {"dtype"}, {"shape"}, {"bytes", kRight}, {"holds"}};
  if (has_ranks) columns.insert(columns.begin(), {"rank", kRight});
  Table table(std::move(columns));
  for (const StoredShard& shard : shards) {
    const TensorRecord& record = shard.record;
    std::vector<std::string> row = {std::to_string(shard.number),
                                    std::string(DTypeName(record.dtype)), HumanShape(record.shape),
                                    HumanBytes(record.LogicalBytes()), LayoutText(record)};
    if (has_ranks) row.insert(row.begin(), std::to_string(*shard.rank));
    table.AddRow(std::move(row));
  }
  return table.ToString();
}

Outcome RunShowTensor(const Context& context, const Store& store, const ShowOptions& options) {
  const auto shards = LoadShards(store, options.step, options.tensor);
  if (!shards.ok()) return shards.status();
  context.json() ? context.PrintJson(ToArray(*shards)) : context.PrintText(ToText(*shards));
  return {};
}

constexpr char kShowNotes[] =
    R"(With NAME it shows the tensor's shards instead, and which part of it each holds.
For the root of a group it also shows the rank that has the shard. Without NAME
it shows saves that are not finished, and the ranks that they wait for.

JSON: run step created parent tensors logical_bytes new_bytes stored_bytes
metrics tags trainer_state topology items, of a group unfinished[run step
missing_ranks]; with NAME an array of shard dtype shape logical_bytes layout, of
a group also rank)";

}  // namespace

Result<ordered_json> ShowCheckpoint(const Store& store, const std::string& path,
                                    const std::string& step) {
  VARVE_ASSIGN_OR_RETURN(const Shown shown, Load(store, path, step));
  return ToObject(shown);
}

Result<ordered_json> ShowShards(const Store& store, const std::string& step,
                                const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const auto shards, LoadShards(store, step, name));
  return ToArray(shards);
}

void AddShow(CLI::App& app, Context& context) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* verb =
      app.add_subcommand("show", "Show a checkpoint's trainer state, topology, metrics and sizes");
  verb->add_option("STEP", options->step, kStepHelp)->required();
  verb->add_option("NAME", options->tensor, "A tensor: show its shards");
  verb->footer(kShowNotes);
  context.OnReading(verb, [&context, options](const Store& store) {
    return options->tensor.empty() ? RunShow(context, store, *options)
                                   : RunShowTensor(context, store, *options);
  });
}

}  // namespace varve::internal::cli
