// SPDX-License-Identifier: Apache-2.0
//
// The opaque items in which an import of InfiniTrain files keeps what tensors and state do not say,
// so that an export is equal byte for byte. Functions are stateless.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/infinitrain_files.h"
#include "varve/result.h"

namespace varve::internal::cli {

inline constexpr char kInfiniTrainItems[] = "infinitrain.";  // all their names start with this
// Lists the tensors that each file holds, in order: {"model.ckpt": ["wte", ...]}.
inline constexpr char kInfiniTrainLayoutItem[] = "infinitrain.layout";
// The original text of trainer_state.json.
inline constexpr char kInfiniTrainStateItem[] = "infinitrain.trainer_state.json";

std::string BuildLayoutItem(std::span<const formats::CkptLayout> layout);
// kCorruption: the text is not such an item.
Result<std::vector<formats::CkptLayout>> ParseLayoutItem(std::string_view text);

}  // namespace varve::internal::cli
