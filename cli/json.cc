// SPDX-License-Identifier: Apache-2.0
#include "cli/json.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

namespace varve::internal::cli {

using nlohmann::ordered_json;

namespace {

ordered_json ToJson(const StateValue& value) {
  return std::visit(
      [](const auto& held) -> ordered_json {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, double>) {
          return cli::ToJson(held);
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          ordered_json array = ordered_json::array();
          for (const double element : held) array.push_back(cli::ToJson(element));
          return array;
        } else {
          return held;
        }
      },
      value);
}

ordered_json ToJson(const std::map<std::string, StateValue>& values) {
  ordered_json object = ordered_json::object();
  for (const auto& [key, value] : values) object[key] = ToJson(value);
  return object;
}

ordered_json ToJson(const std::vector<RngState>& states) {
  ordered_json array = ordered_json::array();
  for (const RngState& state : states) {
    array.push_back(
        {{"rank", state.rank}, {"generator", state.generator}, {"bytes", state.state.size()}});
  }
  return array;
}

}  // namespace

ordered_json ToJson(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

ordered_json ToJson(const CheckpointId& id) { return {{"run", id.run}, {"step", id.step}}; }

ordered_json ToJson(const std::map<std::string, double>& metrics) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, value] : metrics) object[name] = ToJson(value);
  return object;
}

ordered_json ToJson(const CheckpointInfo& info) {
  return {{"run", info.id.run},
          {"step", info.id.step},
          {"created", IsoTime(info.created)},
          {"parent", info.parent ? ToJson(*info.parent) : ordered_json()},
          {"tensors", info.num_tensors},
          {"logical_bytes", info.logical_bytes},
          {"new_bytes", info.new_bytes},
          {"stored_bytes", info.stored_bytes},
          {"metrics", ToJson(info.metrics)},
          {"tags", info.tags}};
}

ordered_json ToJson(const TrainerProgress& state) {
  return {{"global_step", state.global_step},
          {"epoch", state.epoch},
          {"consumed_samples", state.consumed_samples},
          {"best_metric", ToJson(state.best_metric)},
          {"last_loss", ToJson(state.last_loss)},
          {"lr_scheduler", ToJson(state.lr_scheduler)},
          {"loss_scaler", ToJson(state.loss_scaler)},
          {"rng", ToJson(state.rng)},
          {"extra", ToJson(state.extra)}};
}

ordered_json ToJson(const Topology& topology) {
  return {{"dp", topology.dp},
          {"tp", topology.tp},
          {"pp", topology.pp},
          {"vpp", topology.vpp},
          {"sp", topology.sp},
          {"cp", topology.cp},
          {"ep", topology.ep},
          {"zero_stage", topology.zero_stage},
          {"world_size", topology.world_size},
          {"rank_order", topology.rank_order}};
}

ordered_json ToJson(std::span<const CodecUse> uses) {
  ordered_json object = ordered_json::object();
  for (const CodecUse& use : uses) {
    object[use.codec] = {{"chunks", use.num_chunks},
                         {"raw_bytes", use.raw_bytes},
                         {"stored_bytes", use.stored_bytes}};
  }
  return object;
}

ordered_json ToJson(std::span<const CoderUse> uses) {
  ordered_json object = ordered_json::object();
  for (const CoderUse& use : uses) {
    object[use.coder] = {{"planes", use.num_planes},
                         {"raw_bytes", use.raw_bytes},
                         {"stored_bytes", use.stored_bytes}};
  }
  return object;
}

ordered_json ToJson(const SaveReport& report) {
  ordered_json object = {{"run", report.id.run},
                         {"step", report.id.step},
                         {"tensors", report.num_tensors},
                         {"logical_bytes", report.logical_bytes},
                         {"new_bytes", report.new_bytes},
                         {"stored_bytes", report.stored_bytes},
                         {"seconds", report.elapsed.count()},
                         {"by_codec", ToJson(report.by_codec)},
                         {"by_coder", ToJson(report.by_coder)}};
  if (!report.warnings.empty()) object["warnings"] = report.warnings;
  return object;
}

ordered_json ToJson(std::span<const CheckpointId> dropped, const ReclaimReport& report) {
  ordered_json ids = ordered_json::array();
  for (const CheckpointId& id : dropped) ids.push_back(ToJson(id));
  return {{"dropped", std::move(ids)},
          {"freed_bytes", report.freed_bytes},
          {"rewritten_bytes", report.rewritten_bytes},
          {"pending_bytes", report.pending_bytes},
          {"disk_bytes_before", report.disk_bytes_before},
          {"disk_bytes_after", report.disk_bytes_after}};
}

std::string IsoTime(std::chrono::system_clock::time_point time) {
  const auto micros =
      std::chrono::floor<std::chrono::microseconds>(time.time_since_epoch()).count();
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(whole);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char date[64];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &parts);
  char text[96];
  std::snprintf(text, sizeof(text), "%s.%06dZ", date,
                static_cast<int>(((micros % 1'000'000) + 1'000'000) % 1'000'000));
  return text;
}

}  // namespace varve::internal::cli
