// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/infinitrain_fields.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace varve::internal::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kPrefix = "infinitrain.";
constexpr std::string_view kStepField = "global_step";
constexpr std::string_view kSamplesField = "consumed_train_samples";
constexpr std::string_view kRateField = "last_lr";

// The keys of `extra` that InfiniTrain reads as integers, in its order. last_lr comes after the
// first.
constexpr std::string_view kIntegerFields[] = {"consumed_batches", "n_layer", "n_head",
                                               "n_kv_head",        "n_embd",  "vocab_size"};

struct SizeField {
  std::string_view name;
  uint32_t Topology::*member;
};
constexpr SizeField kSizeFields[] = {{"ddp_size", &Topology::dp},
                                     {"tp_size", &Topology::tp},
                                     {"sp_size", &Topology::sp},
                                     {"pp_size", &Topology::pp}};
constexpr int64_t kMaxSize = 1 << 16;

Status Unexpected(std::string_view name, const json& value, std::string_view expected) {
  return Status::InvalidArgument("\"" + std::string(name) + "\" is " + value.dump() +
                                 "; expected " + std::string(expected));
}

bool IsInt64(const json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
}

Result<int64_t> Integer(std::string_view name, const json& value, int64_t min,
                        int64_t max = INT64_MAX) {
  if (IsInt64(value) && min <= value.get<int64_t>() && value.get<int64_t>() <= max) {
    return value.get<int64_t>();
  }
  return Unexpected(name, value,
                    "an integer from " + std::to_string(min) + " to " + std::to_string(max));
}

// A value for which `extra` has no type is kept as its JSON text.
StateValue ExtraValue(const json& value) {
  if (IsInt64(value)) return value.get<int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

Status CheckExtra(std::string_view name, const json& value) {
  if (std::find(std::begin(kIntegerFields), std::end(kIntegerFields), name) !=
      std::end(kIntegerFields)) {
    return Integer(name, value, 0).status();
  }
  if (name == kRateField && !value.is_number()) return Unexpected(name, value, "a number");
  return Status::Ok();
}

Status ReadField(std::string_view name, const json& value, InfiniTrainFields* fields) {
  if (name == kStepField) {
    VARVE_ASSIGN_OR_RETURN(fields->state.global_step, Integer(name, value, 0));
    fields->step = static_cast<uint64_t>(fields->state.global_step);
    return Status::Ok();
  }
  if (name == kSamplesField) {
    VARVE_ASSIGN_OR_RETURN(fields->state.consumed_samples, Integer(name, value, 0));
    return Status::Ok();
  }
  for (const SizeField& field : kSizeFields) {
    if (name != field.name) continue;
    VARVE_ASSIGN_OR_RETURN(const int64_t size, Integer(name, value, 1, kMaxSize));
    if (!fields->topology) fields->topology.emplace();
    (*fields->topology).*field.member = static_cast<uint32_t>(size);
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(CheckExtra(name, value));
  fields->state.extra[std::string(kPrefix) + std::string(name)] = ExtraValue(value);
  return Status::Ok();
}

// Sequence parallelism uses the ranks of tensor parallelism.
Status CountRanks(Topology* topology) {
  const uint64_t ranks = uint64_t{topology->dp} * topology->tp * topology->pp;
  if (ranks > UINT32_MAX) {
    return Status::InvalidArgument("ddp_size, tp_size and pp_size make " + std::to_string(ranks) +
                                   " ranks; expected less than 2^32");
  }
  topology->world_size = static_cast<uint32_t>(ranks);
  return Status::Ok();
}

ordered_json ToJson(const StateValue& value) {
  return std::visit([](const auto& held) { return ordered_json(held); }, value);
}

}  // namespace

Result<InfiniTrainFields> FieldsFromJson(const json& root) {
  InfiniTrainFields fields;
  for (const auto& [name, value] : root.items()) {
    VARVE_RETURN_IF_ERROR(ReadField(name, value, &fields));
  }
  if (fields.topology) VARVE_RETURN_IF_ERROR(CountRanks(&*fields.topology));
  return fields;
}

ordered_json JsonFromFields(const TrainerProgress& state, const std::optional<Topology>& topology) {
  std::map<std::string_view, const StateValue*> extra;
  for (const auto& [key, value] : state.extra) {
    if (key.starts_with(kPrefix)) extra[std::string_view(key).substr(kPrefix.size())] = &value;
  }
  ordered_json root;
  const auto take = [&](std::string_view name) {
    const auto found = extra.find(name);
    if (found == extra.end()) return;
    root[std::string(name)] = ToJson(*found->second);
    extra.erase(found);
  };
  root[std::string(kStepField)] = state.global_step;
  take(kIntegerFields[0]);
  if (state.consumed_samples != 0) root[std::string(kSamplesField)] = state.consumed_samples;
  take(kRateField);
  for (const std::string_view name : kIntegerFields) take(name);
  if (topology) {
    for (const SizeField& field : kSizeFields) {
      root[std::string(field.name)] = (*topology).*field.member;
    }
  }
  for (const auto& [name, value] : extra) root[std::string(name)] = ToJson(*value);
  return root;
}

}  // namespace varve::internal::cli
