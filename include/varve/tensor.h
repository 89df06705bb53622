// SPDX-License-Identifier: Apache-2.0
//
// Describes a tensor: a name, an element type, a shape and bytes in row-major order.
// All types here are plain values. Only TensorView points to memory of others.
//
// Thread rule: one thread at a time for each object. The functions are stateless, and any thread
// may call them.
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

// The element types are those of safetensors. The values are stored on disk. Never renumber them.
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
  kF4 = 16,      // 4 bits an element, two in a byte
  kF6E2M3 = 17,  // 6 bits an element, four in three bytes
  kF6E3M2 = 18,  // 6 bits an element
  kC64 = 19,     // complex: two F32
};
inline constexpr int kNumDTypes = 20;

// Returns the bits of one element, or 0 for a value that is no DType.
int DTypeBits(DType dtype);
// Returns the name that safetensors uses, e.g. "BF16". Returns "?" for a value that is no DType.
std::string_view DTypeName(DType dtype);
// Returns the DType of a safetensors name, or nullopt when the name is unknown.
std::optional<DType> ParseDType(std::string_view name);

// Returns the number of elements of `shape`. A 0-d shape has one. kInvalidArgument: a length is
// negative, or the product overflows int64.
Result<int64_t> NumElements(std::span<const int64_t> shape);
// Returns the bytes of a dense tensor. kInvalidArgument: as NumElements, or elements of less than a
// byte do not fill whole bytes.
Result<uint64_t> NumBytes(DType dtype, std::span<const int64_t> shape);

inline constexpr size_t kMaxNameBytes = 1024;

// Checks a name of a tensor, item or metric: 1 to kMaxNameBytes bytes of well-formed UTF-8 without
// NUL. kInvalidArgument says which rule is broken and where. `what` is the subject of the message
// ("tensor name").
Status ValidateName(std::string_view what, std::string_view name);

// Says what the trainer uses a tensor for, so that a load can leave the optimizer out. The trainer
// sets it. varve does not guess it from names. The values are stored on disk. Never renumber them.
enum class TensorRole : uint8_t {
  kOther = 0,
  kParameter = 1,  // a weight or bias of the model
  kBuffer = 2,     // a tensor of the model that is not trained
  kOptimizer = 3,  // FP32 masters, moments, ...
};
inline constexpr int kNumTensorRoles = 4;
// Returns "other", "parameter", "buffer" or "optimizer", or "?" for a value that is no role.
std::string_view TensorRoleName(TensorRole role);

struct TensorView;

// Describes a tensor without its data, and owns its strings and vectors. TensorView is the same
// with data, and owns nothing.
struct TensorSpec {
  std::string name{};
  DType dtype = DType::kF32;
  std::vector<int64_t> shape{};  // elements on each axis. Empty = 0-d, one element
  TensorRole role = TensorRole::kOther;
  // Hint: the name of this tensor's master, an FP32 tensor of the same checkpoint. This tensor is
  // BF16 or F16, and is its master rounded to nearest, ties to even. If both tensors are dense and
  // have equally many chunks, this tensor is stored as a reference to the master, unless
  // StoreOptions::compression is kNone. Each save verifies the hint. If the hint is wrong, this
  // tensor is stored by itself, and its bytes are still exact.
  std::string derived_from{};
  // Hint: the name of a tensor of the same checkpoint that shared its memory with this one. varve
  // only records it, and TensorInfo returns it. A load does not use it. Equal chunks are stored
  // once with or without the hint.
  std::string alias_of{};
  // Says which part of a global tensor this tensor is. `shape` is then layout->LocalShape(). Unset:
  // this is a whole tensor.
  std::optional<ShardLayout> layout{};

  bool operator==(const TensorSpec&) const = default;
  // Returns a view without data and strides. It is valid while this spec lives and is unchanged.
  TensorView View() const;
};

// A TensorSpec and its data. The caller owns all that the fields point to. CheckpointWriter::Put
// copies the description, and says how long `data` must live.
struct TensorView {
  std::string_view name{};
  DType dtype = DType::kF32;
  std::span<const int64_t> shape{};
  const void* data = nullptr;  // the first element. May be null if the tensor has no elements
  // The distance between neighbours on each axis, in elements, as in PyTorch (NumPy counts bytes).
  // A stride may be zero or negative. Empty = dense row-major. Types of less than a byte must be
  // dense.
  std::span<const int64_t> strides{};
  std::string_view derived_from{};
  std::string_view alias_of{};
  TensorRole role = TensorRole::kOther;
  // The number of this shard, less than kAllShards (below). Several shards of one tensor may be
  // saved under one name, each with its own number. With `layout` they are parts of one global
  // tensor. Together they must hold all of it. Two shards may hold the same element only if their
  // layouts are equal. Such shards are replicas, and must have equal bytes. Without `layout` each
  // shard is a tensor of its own.
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

// A shard number that stands for the global tensor, which all shards make together.
inline constexpr uint32_t kAllShards = UINT32_MAX;

// Describes a stored tensor, or one shard of it. `derived_from` and `alias_of` are as they were
// saved. `layout` is set for a shard that was saved with one.
struct TensorInfo : TensorSpec {
  uint32_t shard = 0;          // kAllShards: this describes the global tensor
  uint64_t logical_bytes = 0;  // raw bytes of a dense tensor of this shape
  uint64_t num_chunks = 0;     // of this shard. For the global tensor, of all its shards
  uint32_t num_shards = 1;     // 1 if this describes a shard. Else how many shards were saved
  // The digest of the list of all chunk digests (docs/format.md), as {lo, hi} of varve/digest.h.
  // Two tensors of one store with the same dtype and content digest have equal bytes. Zero = not
  // known, as for a tensor of several shards.
  std::array<uint64_t, 2> content{};
};

}  // namespace varve
