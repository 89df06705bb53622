// SPDX-License-Identifier: Apache-2.0
//
// llm.c's training state of one process: a header of 256 little-endian int32, then the moments m
// and v and perhaps FP32 masters, each a flat vector over the parameters or this process's share of
// them, then the state of a data loader that shuffles. All functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cli/formats/mapped_tensor.h"
#include "varve/result.h"

namespace varve::formats {

inline constexpr uint32_t kLlmcStateMagic = 20240527;

// A checked header. Numbers of the loader and the generator are whatever the file says.
struct LlmcStateHeader {
  uint32_t num_processes = 1;
  uint32_t rank = 0;
  bool has_master = false;
  bool has_shuffle = false;
  uint64_t step = 0;
  std::span<const std::byte> rng;  // state, and the state of the last update
  uint64_t shard_index = 0;
  uint64_t sample_index = 0;

  // The names of the vectors in the order of the file: adam.m, adam.v, adam.master.
  std::vector<std::string_view> VectorNames() const;
};

struct LlmcState {
  LlmcStateHeader header;
  std::vector<MappedTensor> tensors;  // in the order of the file; shard = rank
  bool is_sharded = false;            // the vectors are a share of the parameters
  std::span<const std::byte> loader;  // what follows the vectors
};

// Checks the header, which is the first 1,024 bytes. kInvalidArgument names the offset.
Result<LlmcStateHeader> ParseLlmcStateHeader(std::span<const std::byte> file);

// Reads a whole file. How long its vectors are is not in it, so the model says how many parameters
// there are. kInvalidArgument names the offset.
Result<LlmcState> ParseLlmcState(std::span<const std::byte> file, uint64_t num_parameters);

}  // namespace varve::formats
