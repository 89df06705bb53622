// SPDX-License-Identifier: Apache-2.0
//
// The library's values as JSON, with the keys that docs/cli.md promises, in that order. Functions
// are stateless.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/store.h"
#include "varve/trainer_progress.h"

namespace varve::internal::cli {

// JSON has no NaN and no infinity. They become the strings "NaN", "Infinity" and "-Infinity", which
// Python's float() and JavaScript's Number() accept.
nlohmann::ordered_json ToJson(double value);
nlohmann::ordered_json ToJson(const CheckpointId& id);        // {run, step}
nlohmann::ordered_json ToJson(const CheckpointInfo& info);    // one element of `steps`
nlohmann::ordered_json ToJson(const TrainerProgress& state);  // RNG states as sizes
nlohmann::ordered_json ToJson(const Topology& topology);
nlohmann::ordered_json ToJson(std::span<const CodecUse> uses);  // an object by codec
nlohmann::ordered_json ToJson(std::span<const CoderUse> uses);  // an object by coder
nlohmann::ordered_json ToJson(const std::map<std::string, double>& metrics);
nlohmann::ordered_json ToJson(const SaveReport& report);  // of `import`, and of each step of `copy`

// Reports `drop`, `forget` and `reclaim`.
nlohmann::ordered_json ToJson(std::span<const CheckpointId> dropped, const ReclaimReport& report);

// Writes a time as ISO 8601 in UTC with microseconds: "2026-11-20T20:11:14.012345Z".
std::string IsoTime(std::chrono::system_clock::time_point time);

}  // namespace varve::internal::cli
