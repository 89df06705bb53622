// SPDX-License-Identifier: Apache-2.0
//
// What crash and system tests save. The content of a step is a pure function of a plan and a
// number. So another process can tell, byte for byte, whether it reads that content, whole. From
// one content number to the next some of the blocks stay equal, so that steps share chunks. All
// functions are stateless and may run on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "varve/varve.h"

namespace varve::internal::testing {

struct ContentPlan {
  uint64_t seed = 1;
  int num_tensors = 8;
  uint64_t max_tensor_bytes = uint64_t{2} << 20;  // sizes are drawn up to this
  uint64_t period = 4;                            // a block changes once in so many contents
  // True: there is also what an optimizer has made of a parameter in as many steps as the content
  // has for a number, with a rounded copy. Content n + 1 is saved with the hint that follows n. Its
  // cost rises with the number.
  bool has_trained = false;
};

// "60000" is the size of the largest tensor, and "60000+trained" also says has_trained.
ContentPlan ParsePlan(const std::string& text);

struct MadeTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  std::string derived_from{};
};

// Random, constant, float-like, slowly drifting, tied, scalar and empty tensors, in turn.
std::vector<MadeTensor> MakeContent(const ContentPlan& plan, uint64_t content);

// Begin to Commit. The content number travels as the trainer state's global step.
Result<SaveReport> SaveContent(Store* store, const ContentPlan& plan, uint64_t step,
                               uint64_t content, const SaveOptions& options = {});

// The content number that a checkpoint says it holds.
Result<uint64_t> ReadContentNumber(const CheckpointReader& reader);

// Reads everything and compares it with MakeContent of the number that the checkpoint says it
// holds. kCorruption names the first difference. Errors of reading are returned as they are.
Status VerifyContent(const CheckpointReader& reader, const ContentPlan& plan);

// A 64-bit mix of its inputs: the only source of randomness of the tests that use this header.
uint64_t Mix(uint64_t a, uint64_t b, uint64_t c = 0);

}  // namespace varve::internal::testing
