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
#include "store/step_expr.h"
#include "varve/store.h"

namespace varve::cli {
namespace {

using nlohmann::ordered_json;

struct ShowOptions {
  std::string step;
};

struct Shown {
  CheckpointInfo info;
  std::optional<TrainerState> state;
  std::optional<Topology> topology;
  std::vector<std::string> items;
};

Result<Shown> Load(const Store& store, const std::string& step) {
  Shown shown;
  VARVE_ASSIGN_OR_RETURN(const CheckpointId id, ResolveStep(store, step));
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(id.run, id.step));
  shown.info = reader->info();
  VARVE_ASSIGN_OR_RETURN(shown.state, reader->ReadTrainerState());
  VARVE_ASSIGN_OR_RETURN(shown.topology, reader->ReadTopology());
  VARVE_ASSIGN_OR_RETURN(shown.items, reader->ListBytes());
  return shown;
}

ordered_json ToObject(const Shown& shown) {
  ordered_json object = ToJson(shown.info);
  object["trainer_state"] = shown.state ? ToJson(*shown.state) : ordered_json();
  object["topology"] = shown.topology ? ToJson(*shown.topology) : ordered_json();
  object["items"] = shown.items;
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

// The parts of a JSON object, one a line; an empty part is left out.
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
  if (shown.topology) text += PartsText("topology", ToJson(*shown.topology));
  if (!shown.state) return text;
  ordered_json state = ToJson(*shown.state);
  const ordered_json extra = state["extra"];
  state.erase("extra");
  text += PartsText("trainer state", state);
  return extra.empty() ? text : text + PartsText("extra", extra);
}

Outcome RunShow(const Context& context, const Store& store, const ShowOptions& options) {
  const auto shown = Load(store, options.step);
  if (!shown.ok()) return shown.status();
  context.json() ? context.PrintJson(ToObject(*shown)) : context.PrintText(ToText(*shown));
  return {};
}

constexpr char kNotes[] =
    R"(JSON: run step created parent tensors logical_bytes new_bytes stored_bytes
metrics tags trainer_state topology items)";

}  // namespace

void AddShow(CLI::App& app, Context& context) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* verb =
      app.add_subcommand("show", "Show a checkpoint's trainer state, topology, metrics and sizes");
  verb->add_option("STEP", options->step, kStepHelp)->required();
  verb->footer(kNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunShow(context, store, *options); });
}

}  // namespace varve::cli
