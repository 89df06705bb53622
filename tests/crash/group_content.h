// SPDX-License-Identifier: Apache-2.0
//
// What ranks of a group save in tests, and what must hold of the group afterwards.
//
// The number of a step is that of its content. Rank r holds the content of a plan of its own, under
// names of its own. All ranks together hold the content of one more plan: each rank has its first
// tensor whole, and an equal part of each other tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "store/group/group_store.h"
#include "tests/support/step_content.h"
#include "varve/store.h"

namespace varve::internal::testing {

// A save of a rank that has begun, with the memory that its writer reads.
struct RankSave {
  std::vector<MadeTensor> own, all;
  std::unique_ptr<CheckpointWriter> writer;
};

// Begins the save of a step on one rank and puts all that the rank holds. The caller commits.
Result<RankSave> BeginSave(GroupStore* store, uint32_t num_ranks, uint64_t step);

// Checks that every tensor of every rank, and of all together, is that of this step. kNotFound: the
// step was dropped meanwhile.
Status VerifyStep(const CheckpointReader& reader);

Result<std::vector<uint64_t>> ListSteps(const Store& store);

// Returns what members and catalogues hold that the log does not name. No other process may be at
// work.
Result<std::vector<std::string>> FindLeaks(const std::filesystem::path& root);

// Returns a line for each finding: "leak WHAT", "error WHAT" of a full check, and for each step
// "step NUMBER STATUS". No other process may be at work.
Result<std::vector<std::string>> JudgeGroup(const std::filesystem::path& root);

}  // namespace varve::internal::testing
