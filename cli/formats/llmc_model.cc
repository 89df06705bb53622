// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/llmc_model.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string_view>
#include <utility>

#include "base/bytes_of.h"
#include "cli/formats/byte_reader.h"

namespace varve::internal::formats {
namespace {

// The limit is far above any model, and low enough that no product of sizes exceeds 2^63.
constexpr int64_t kMaxWidth = int64_t{1} << 18;
constexpr int64_t kMaxLayers = int64_t{1} << 14;
constexpr int64_t kMaxRows = int64_t{1} << 30;

constexpr int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The ints of a header by position.
class HeaderInts {
 public:
  explicit HeaderInts(std::span<const std::byte> file) : file_(file) {}

  uint32_t Bits(size_t index) const { return LoadU32(file_.subspan(4 * index)); }
  int64_t Int(size_t index) const { return static_cast<int32_t>(Bits(index)); }

  Result<int64_t> Between(size_t index, std::string_view field, int64_t min, int64_t max) const {
    const int64_t value = Int(index);
    if (min <= value && value <= max) return value;
    return Unexpected(
        index, field,
        min == max ? std::to_string(min) : std::to_string(min) + " to " + std::to_string(max));
  }

  Status Unexpected(size_t index, std::string_view field, std::string_view expected) const {
    return ErrorAt(4 * index, std::string(field) + " is " + std::to_string(Int(index)) +
                                  "; expected " + std::string(expected));
  }

 private:
  std::span<const std::byte> file_;
};

Status ReadGpt2(const HeaderInts& ints, LlmcHeader* header) {
  VARVE_ASSIGN_OR_RETURN(const int64_t vocab, ints.Between(3, "vocab_size", 1, kMaxRows));
  VARVE_ASSIGN_OR_RETURN(header->n_layer, ints.Between(4, "n_layer", 1, kMaxLayers));
  VARVE_ASSIGN_OR_RETURN(header->n_head, ints.Between(5, "n_head", 1, kMaxWidth));
  VARVE_ASSIGN_OR_RETURN(header->n_embd, ints.Between(6, "n_embd", 1, kMaxWidth));
  const int64_t padded = RoundUp(vocab, 128);
  VARVE_ASSIGN_OR_RETURN(header->num_rows, ints.Between(7, "padded_vocab_size", padded, padded));
  header->n_kv_head = header->n_head;
  header->ffn_min = header->ffn_max = 4 * header->n_embd;
  return Status::Ok();
}

// The factor of the MLP's width. InfiniTrain stores a float's bits, and plain llm.c cuts it to an
// integer. No value can be both.
Status ReadFfn(const HeaderInts& ints, LlmcHeader* header) {
  VARVE_ASSIGN_OR_RETURN(header->ffn_unit, ints.Between(9, "multiple_of", 1, kMaxWidth));
  const int64_t base = 2 * (4 * header->n_embd) / 3;
  const int64_t integer = ints.Int(8);
  const float factor = std::bit_cast<float>(ints.Bits(8));
  int64_t min = base * integer;
  int64_t max = base * (integer + 1);
  if (factor >= 0x1p-7f && factor <= 64.0f) {
    // Trainers round the product in different ways.
    const auto width =
        static_cast<int64_t>(static_cast<double>(factor) * static_cast<double>(base));
    min = width - 1;
    max = width + 1;
  } else if (integer < 0 || integer > 64) {
    return ints.Unexpected(8, "ffn_dim_multiplier",
                           "the bits of a float from 1/128 to 64, or an integer from 0 to 64");
  }
  header->ffn_min = RoundUp(std::max(min, int64_t{1}), header->ffn_unit);
  header->ffn_max = RoundUp(std::max(max, int64_t{1}), header->ffn_unit);
  return Status::Ok();
}

Status ReadLlama3(const HeaderInts& ints, LlmcHeader* header) {
  header->is_llama = true;
  VARVE_ASSIGN_OR_RETURN(header->num_rows, ints.Between(3, "vocab_size", 1, kMaxRows));
  VARVE_ASSIGN_OR_RETURN(header->n_layer, ints.Between(4, "n_layer", 1, kMaxLayers));
  VARVE_ASSIGN_OR_RETURN(header->n_head, ints.Between(5, "n_head", 1, kMaxWidth));
  VARVE_ASSIGN_OR_RETURN(header->n_kv_head, ints.Between(6, "n_kv_head", 1, header->n_head));
  VARVE_ASSIGN_OR_RETURN(header->n_embd, ints.Between(7, "n_embd", 1, kMaxWidth));
  if (header->n_head % header->n_kv_head != 0) {
    return ints.Unexpected(6, "n_kv_head", "a divisor of n_head " + std::to_string(header->n_head));
  }
  return ReadFfn(ints, header);
}

// A parameter of one layer, or of the whole model.
struct Stack {
  std::string_view name;
  std::vector<int64_t> shape;
  bool is_layered = true;
};

std::vector<Stack> Gpt2Stacks(const LlmcHeader& header) {
  const int64_t c = header.n_embd;
  return {{"transformer.wte.weight", {header.num_rows, c}, false},
          {"transformer.wpe.weight", {header.block_size, c}, false},
          {"ln_1.weight", {c}},
          {"ln_1.bias", {c}},
          {"attn.c_attn.weight", {3 * c, c}},
          {"attn.c_attn.bias", {3 * c}},
          {"attn.c_proj.weight", {c, c}},
          {"attn.c_proj.bias", {c}},
          {"ln_2.weight", {c}},
          {"ln_2.bias", {c}},
          {"mlp.c_fc.weight", {4 * c, c}},
          {"mlp.c_fc.bias", {4 * c}},
          {"mlp.c_proj.weight", {c, 4 * c}},
          {"mlp.c_proj.bias", {c}},
          {"transformer.ln_f.weight", {c}, false},
          {"transformer.ln_f.bias", {c}, false}};
}

std::vector<Stack> Llama3Stacks(const LlmcHeader& header, int64_t ffn) {
  const int64_t c = header.n_embd;
  const int64_t qkv = c + 2 * (c / header.n_head) * header.n_kv_head;
  return {{"transformer.wte.weight", {header.num_rows, c}, false},
          {"ln_1.weight", {c}},
          {"attn.c_attn.weight", {qkv, c}},
          {"attn.c_proj.weight", {c, c}},
          {"ln_2.weight", {c}},
          {"mlp.c_fc.weight", {ffn, c}},
          {"mlp.c_fc2.weight", {ffn, c}},
          {"mlp.c_proj.weight", {c, ffn}},
          {"transformer.ln_f.weight", {c}, false},
          {"lm_head.weight", {header.num_rows, c}, false}};
}

std::vector<Stack> Stacks(const LlmcHeader& header, int64_t ffn) {
  return header.is_llama ? Llama3Stacks(header, ffn) : Gpt2Stacks(header);
}

int64_t CountParameters(const LlmcHeader& header, int64_t ffn) {
  int64_t count = 0;
  for (const Stack& stack : Stacks(header, ffn)) {
    int64_t elements = stack.is_layered ? header.n_layer : 1;
    for (const int64_t size : stack.shape) elements *= size;
    count += elements;
  }
  return count;
}

uint64_t FileBytes(const LlmcHeader& header, int64_t ffn) {
  return kLlmcHeaderBytes + BytesOf(header.dtype, CountParameters(header, ffn));
}

// Returns the width of the MLP for which the file would have exactly this size.
std::optional<int64_t> FindFfn(const LlmcHeader& header, uint64_t file_bytes) {
  if (FileBytes(header, header.ffn_min) == file_bytes) return header.ffn_min;
  if (header.ffn_min == header.ffn_max) return std::nullopt;
  const uint64_t without = FileBytes(header, 0);
  const uint64_t each = FileBytes(header, 1) - without;
  if (file_bytes < without || (file_bytes - without) % each != 0) return std::nullopt;
  const uint64_t ffn = (file_bytes - without) / each;
  if (ffn > static_cast<uint64_t>(header.ffn_max)) return std::nullopt;
  if (!header.Allows(static_cast<int64_t>(ffn))) return std::nullopt;
  return static_cast<int64_t>(ffn);
}

Status WrongSize(const LlmcHeader& header, uint64_t file_bytes) {
  const uint64_t min = FileBytes(header, header.ffn_min);
  const uint64_t max = FileBytes(header, header.ffn_max);
  std::string expected = std::to_string(min);
  if (min != max) {
    const uint64_t step = FileBytes(header, header.ffn_unit) - FileBytes(header, 0);
    expected += " to " + std::to_string(max) + " in steps of " + std::to_string(step);
  }
  if (file_bytes > max) {
    return ErrorAt(max, "the file goes on for " + std::to_string(file_bytes - max) +
                            " bytes after the last parameter");
  }
  return ErrorAt(file_bytes, "the file ends; its header needs " + expected + " bytes");
}

}  // namespace

Result<LlmcHeader> ParseLlmcHeader(std::span<const std::byte> file) {
  if (file.size() < kLlmcHeaderBytes) {
    return ErrorAt(file.size(), "the file ends inside its header of 1024 bytes");
  }
  const HeaderInts ints(file);
  const uint32_t magic = ints.Bits(0);
  if (magic != kLlmcGpt2Magic && magic != kLlmcLlama3Magic) {
    return ints.Unexpected(0, "the magic number", "20240326 (GPT-2) or 20240803 (LLaMA-3)");
  }
  const int64_t version = ints.Int(1);
  if (version != 3 && version != 5) {
    return ints.Unexpected(1, "the version", "3 (FP32) or 5 (BF16)");
  }
  LlmcHeader header;
  header.dtype = version == 3 ? DType::kF32 : DType::kBF16;
  VARVE_ASSIGN_OR_RETURN(header.block_size, ints.Between(2, "block_size", 1, kMaxRows));
  VARVE_RETURN_IF_ERROR(magic == kLlmcGpt2Magic ? ReadGpt2(ints, &header)
                                                : ReadLlama3(ints, &header));
  if (header.n_embd % header.n_head != 0) {
    return ints.Unexpected(5, "n_head", "a divisor of n_embd " + std::to_string(header.n_embd));
  }
  return header;
}

std::vector<TensorSpec> LlmcTensors(const LlmcHeader& header, int64_t ffn) {
  std::vector<TensorSpec> tensors;
  for (const Stack& stack : Stacks(header, ffn)) {
    const std::string name(stack.name);
    if (!stack.is_layered) {
      tensors.push_back({.name = name, .dtype = header.dtype, .shape = stack.shape});
    }
    for (int64_t layer = 0; stack.is_layered && layer < header.n_layer; ++layer) {
      tensors.push_back({.name = "transformer.h." + std::to_string(layer) + "." + name,
                         .dtype = header.dtype,
                         .shape = stack.shape});
    }
  }
  return tensors;
}

Result<LlmcModel> ParseLlmcModel(std::span<const std::byte> file) {
  LlmcModel model;
  VARVE_ASSIGN_OR_RETURN(model.header, ParseLlmcHeader(file));
  const std::optional<int64_t> ffn = FindFfn(model.header, file.size());
  if (!ffn) return WrongSize(model.header, file.size());
  model.num_parameters = static_cast<uint64_t>(CountParameters(model.header, *ffn));
  uint64_t begin = kLlmcHeaderBytes;
  for (TensorSpec& tensor : LlmcTensors(model.header, *ffn)) {
    VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, NumBytes(tensor.dtype, tensor.shape));
    model.tensors.push_back({std::move(tensor), file.subspan(begin, bytes)});
    begin += bytes;
  }
  return model;
}

}  // namespace varve::internal::formats
