// SPDX-License-Identifier: Apache-2.0
//
// What a tensor is to varve: a name, an element type, a shape and bytes in row-major order.
// All types here are plain values without hidden sharing; use distinct objects from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"
#include "varve/shard_layout.h"

namespace varve {

// Element types: every dtype of safetensors. The values are stored on disk; never renumber.
enum class DType : uint8_t {
  kBool = 0,  // 1 byte, 0 or 1
  kU8 = 1,
  kI8 = 2,
  kU16 = 3,
  kI16 = 4,
  kU32 = 5,
  kI32 = 6,
  kU64 = 7,
  kI64 = 8,
  kBF16 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kF8E4M3 = 13,
  kF8E5M2 = 14,
  kF8E8M0 = 15,
  kF4 = 16,      // 4 bits an element, two a byte
  kF6E2M3 = 17,  // 6 bits an element, four in three bytes
  kF6E3M2 = 18,  // 6 bits an element
  kC64 = 19,     // complex: two F32
};
inline constexpr int kNumDTypes = 20;

// Bits of one element. 0 for a value that is no DType (as may be read from a damaged file).
int DTypeBits(DType dtype);
// The safetensors name, e.g. "BF16"; "?" for a value that is no DType.
std::string_view DTypeName(DType dtype);
// The reverse of DTypeName. nullopt when the name is unknown.
std::optional<DType> ParseDType(std::string_view name);

// Elements of `shape`; a 0-d shape has one. kInvalidArgument on a negative axis or overflow of
// int64.
Result<int64_t> NumElements(std::span<const int64_t> shape);
// Bytes of a dense tensor. kInvalidArgument as above, or when sub-byte elements do not fill whole
// bytes.
Result<uint64_t> NumBytes(DType dtype, std::span<const int64_t> shape);

inline constexpr size_t kMaxNameBytes = 1024;

// Tensor and item names are 1 to 1,024 bytes of well-formed UTF-8 without NUL. kInvalidArgument
// says which rule is broken and where. `what` names the thing in the message ("tensor name").
Status ValidateName(std::string_view what, std::string_view name);

// What a tensor is to the trainer, so that a load may leave the optimizer out. Recorded, never
// guessed from names. The values are stored on disk; never renumber.
enum class TensorRole : uint8_t {
  kOther = 0,
  kParameter = 1,  // what the model computes with
  kBuffer = 2,     // of the model, not trained
  kOptimizer = 3,  // FP32 masters, moments, ...
};
inline constexpr int kNumTensorRoles = 4;
// "other", "parameter", "buffer", "optimizer"; "?" for a value that is no role.
std::string_view TensorRoleName(TensorRole role);

struct TensorView;

// What a tensor is, without its data. Whatever describes a tensor in varve is a TensorSpec, or is a
// TensorView of one.
struct TensorSpec {
  std::string name{};
  DType dtype = DType::kF32;
  std::vector<int64_t> shape{};  // elements on each axis; empty = 0-d, one element
  TensorRole role = TensorRole::kOther;
  // Hint: this 16-bit tensor is the copy of that FP32 tensor of the same checkpoint, its master,
  // rounded to nearest, ties to even. It is then stored as a reference. Each save verifies the
  // hint: a wrong one costs space, never bits.
  std::string derived_from{};
  // Hint: this tensor shared its storage with that one, of the same checkpoint. It is kept for
  // whoever restores both. What is equal is stored once with or without it.
  std::string alias_of{};
  // The part of a global tensor that this is. `shape` is layout->LocalShape(). Unset: it is a whole
  // tensor.
  std::optional<ShardLayout> layout{};

  bool operator==(const TensorSpec&) const = default;
  // Good while this spec lives and does not change.
  TensorView View() const;
};

// A TensorSpec and its data, all of which the caller owns. See CheckpointWriter::Put, which copies
// the description, for how long `data` must live.
struct TensorView {
  std::string_view name{};
  DType dtype = DType::kF32;
  std::span<const int64_t> shape{};
  const void* data = nullptr;  // first element; may be null when the tensor has no elements
  // Distance between neighbours on each axis, in elements. PyTorch counts so, too; NumPy counts
  // bytes. May be zero or negative. Empty = dense row-major. Sub-byte types must be dense.
  std::span<const int64_t> strides{};
  std::string_view derived_from{};
  std::string_view alias_of{};
  TensorRole role = TensorRole::kOther;
  // Several shards of one tensor may be saved under one name. Each has its own number, below
  // kAllShards. With `layout` they are parts of one global tensor. Together they must hold all of
  // it, and no element twice but for replicas: shards of equal layouts, and then of equal bytes.
  // Without `layout` each is a tensor of its own.
  uint32_t shard = 0;
  const ShardLayout* layout = nullptr;
};

inline TensorView TensorSpec::View() const {
  return {.name = name,
          .dtype = dtype,
          .shape = shape,
          .derived_from = derived_from,
          .alias_of = alias_of,
          .role = role,
          .layout = layout.has_value() ? &*layout : nullptr};
}

// In place of a shard's number: the tensor that all shards make together.
inline constexpr uint32_t kAllShards = UINT32_MAX;

// What the store knows of a tensor, or of one shard of it. `derived_from` and `alias_of` are as
// they were saved; empty: of none. `layout` is set for a shard that was saved with one.
struct TensorInfo : TensorSpec {
  uint32_t shard = 0;  // kAllShards: of the global tensor, which its shards' layouts put together
  uint64_t logical_bytes = 0;  // raw bytes of a tensor of this shape
  uint64_t num_chunks = 0;     // of all shards
  uint32_t num_shards = 1;     // replicas counted each
  // The digest of all bytes, with the store's seed. Tensors of one store and dtype that have the
  // same digest are equal. Zero: not known, as for a tensor of several shards.
  std::array<uint64_t, 2> content{};
};

}  // namespace varve
