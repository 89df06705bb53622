// SPDX-License-Identifier: Apache-2.0
//
// The opaque items with which an import of InfiniTrain files remembers what tensors and state do
// not say, so that an export is equal byte for byte. Functions are stateless.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/infinitrain_files.h"
#include "varve/result.h"

namespace varve::cli {

inline constexpr char kInfiniTrainItems[] = "infinitrain.";  // how the names of all begin
// Which tensors each file holds in which order: {"model.ckpt": ["wte", ...]}.
inline constexpr char kInfiniTrainLayoutItem[] = "infinitrain.layout";
// trainer_state.json as it was.
inline constexpr char kInfiniTrainStateItem[] = "infinitrain.trainer_state.json";

std::string BuildLayoutItem(std::span<const formats::CkptLayout> layout);
// kCorruption when it is no such item.
Result<std::vector<formats::CkptLayout>> ParseLayoutItem(std::string_view text);

}  // namespace varve::cli
