// SPDX-License-Identifier: Apache-2.0
//
// llm.c's model file: a header of 256 little-endian int32, then the parameters, all of one dtype
// and without names. The file stacks each parameter over the layers. Here each layer's part is a
// tensor with the name that PyTorch and InfiniTrain give it. The format has no checksum, so a
// changed byte of a parameter goes unnoticed. All functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/file_tensor.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal::formats {

inline constexpr uint64_t kLlmcHeaderBytes = 1024;
inline constexpr uint32_t kLlmcGpt2Magic = 20240326;
inline constexpr uint32_t kLlmcLlama3Magic = 20240803;

// A checked header.
struct LlmcHeader {
  bool is_llama = false;
  DType dtype = DType::kF32;  // or BF16
  int64_t block_size = 0;
  int64_t num_rows = 0;  // of the embedding: the vocabulary, which GPT-2 pads to 128
  int64_t n_layer = 0;
  int64_t n_head = 0;
  int64_t n_kv_head = 0;
  int64_t n_embd = 0;
  // The width of the MLP is a multiple of `ffn_unit` in [ffn_min, ffn_max]. There is more than one
  // choice only for a header that plain llm.c wrote for LLaMA-3, because it holds the factor cut to
  // an integer.
  int64_t ffn_min = 0;
  int64_t ffn_max = 0;
  int64_t ffn_unit = 1;

  bool Allows(int64_t ffn) const { return ffn_min <= ffn && ffn <= ffn_max && ffn % ffn_unit == 0; }
};

struct LlmcModel {
  LlmcHeader header;
  std::vector<FileTensor> tensors;  // in the order of the file. They point into it
  uint64_t num_parameters = 0;
};

// Checks the header, which is the first 1,024 bytes. kInvalidArgument names the offset.
Result<LlmcHeader> ParseLlmcHeader(std::span<const std::byte> file);

// Returns all tensors in the order of the file. Precondition: the header allows `ffn`.
std::vector<TensorSpec> LlmcTensors(const LlmcHeader& header, int64_t ffn);

// The tensor whose number of rows is the width of the MLP.
inline constexpr char kLlmcFfnTensor[] = "transformer.h.0.mlp.c_fc.weight";

// Reads a whole file, which must end where its header says. kInvalidArgument names the offset.
Result<LlmcModel> ParseLlmcModel(std::span<const std::byte> file);

}  // namespace varve::internal::formats
