// SPDX-License-Identifier: Apache-2.0
//
// llm.c's training state of one process: a header of 256 little-endian int32, then vectors, then
// the state of a data loader that shuffles. The vectors are the moments m and v and perhaps FP32
// masters. Each is flat, and covers all parameters or this process's share of them. All functions
// are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/file_tensor.h"
#include "cli/formats/input_file.h"
#include "varve/result.h"

namespace varve::internal::formats {

inline constexpr uint32_t kLlmcStateMagic = 20240527;
inline constexpr uint64_t kMaxLlmcStep = INT32_MAX;
inline constexpr size_t kLlmcRngBytes = 16;

// A checked header. Numbers of the loader and the generator are not checked.
struct LlmcStateHeader {
  uint32_t num_processes = 1;
  uint32_t rank = 0;
  bool has_master = false;
  bool has_shuffle = false;
  uint64_t step = 0;
  std::span<const std::byte> rng;  // state, and the state of the last update
  uint64_t shard_index = 0;
  uint64_t sample_index = 0;

  // Returns the names of the vectors in the order of the file: adam.m, adam.v, adam.master.
  std::vector<std::string_view> VectorNames() const;
};

struct LlmcState {
  LlmcStateHeader header;
  std::vector<FileTensor> tensors;    // in the order of the file. The shard is the rank
  bool is_sharded = false;            // the vectors are a share of the parameters
  std::span<const std::byte> loader;  // what follows the vectors
};

// Checks the header, which is the first 1,024 bytes. kInvalidArgument names the offset.
Result<LlmcStateHeader> ParseLlmcStateHeader(std::span<const std::byte> file);

// Overwrites what changes from step to step in the header at the start of `file`: the step, the
// flag of shuffling, the generator and the position in the data. Preconditions: `file` has a
// header, and the step is at most kMaxLlmcStep. `header.rng` may lie in `file`.
void WriteLlmcProgress(const LlmcStateHeader& header, std::string* file);

// Reads a whole file. It does not hold the length of its vectors, so the caller passes the model's
// number of parameters. kInvalidArgument names the offset. If `fetch` is set, it is called before a
// part of `file` is read, but never for the vectors. Its errors end the reading.
Result<LlmcState> ParseLlmcState(std::span<const std::byte> file, uint64_t num_parameters,
                                 const FetchBytes& fetch = {});

}  // namespace varve::internal::formats
