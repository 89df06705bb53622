// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/dcp_pieces.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "store/shards/disjoint.h"
#include "store/shards/strides.h"
#include "varve/shard_layout.h"
#include "varve/tensor.h"

namespace varve::internal::cli {
namespace {

using formats::TensorBytes;

// A piece by its place in the dense tensor.
struct Part {
  std::vector<int64_t> sizes;
  uint64_t begin = 0;  // of its first element, in bytes
  uint64_t num_bytes = 0;
  std::shared_ptr<TensorBytes> bytes;
};

Status FinishAll(const std::vector<Part>& parts) {
  for (const Part& part : parts) VARVE_RETURN_IF_ERROR(part.bytes->Finish());
  return Status::Ok();
}

// A tensor whose parts follow each other in memory, as when it is cut by rows.
class JoinedBytes : public TensorBytes {
 public:
  // The parts are sorted by begin, and leave no gap.
  explicit JoinedBytes(std::vector<Part> parts) : parts_(std::move(parts)) {}

  Status Read(uint64_t offset, std::span<std::byte> out) override {
    auto part = std::upper_bound(parts_.begin(), parts_.end(), offset,
                                 [](uint64_t at, const Part& p) { return at < p.begin; });
    for (--part; !out.empty(); ++part) {
      const uint64_t within = offset - part->begin;
      const size_t size = std::min<uint64_t>(out.size(), part->num_bytes - within);
      VARVE_RETURN_IF_ERROR(part->bytes->Read(within, out.first(size)));
      offset += size;
      out = out.subspan(size);
    }
    return Status::Ok();
  }
  void Release() override {
    for (const Part& part : parts_) part.bytes->Release();
  }
  Status Finish() override { return FinishAll(parts_); }

 private:
  const std::vector<Part> parts_;
};

// A tensor whose parts lie among each other.
std::shared_ptr<TensorBytes> Assemble(const std::vector<int64_t>& shape, uint64_t element_bytes,
                                      std::vector<Part> parts) {
  uint64_t num_bytes = 0;
  for (const Part& part : parts) num_bytes += part.num_bytes;
  const auto shared = std::make_shared<const std::vector<Part>>(std::move(parts));
  const auto make = [shared, strides = RowMajor(shape), element_bytes](std::span<std::byte> all) {
    std::vector<std::byte> dense;
    for (const Part& part : *shared) {
      dense.resize(part.num_bytes);
      VARVE_RETURN_IF_ERROR(part.bytes->Read(0, dense));
      part.bytes->Release();
      Strides(part.sizes, strides)
          .Scatter(dense, static_cast<size_t>(element_bytes), 0, all.data() + part.begin);
    }
    return Status::Ok();
  };
  return std::make_shared<formats::MadeBytes>(num_bytes, make,
                                              [shared] { return FinishAll(*shared); });
}

// True when a box of these lengths is one run of the dense tensor: after the first axis of more
// than one index, it has all indices.
bool IsRun(const std::vector<int64_t>& shape, const std::vector<int64_t>& sizes) {
  size_t i = 0;
  while (i < sizes.size() && sizes[i] == 1) ++i;
  for (++i; i < sizes.size(); ++i) {
    if (sizes[i] != shape[i]) return false;
  }
  return true;
}

}  // namespace

std::vector<int64_t> RowMajor(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

Status CheckPieces(const std::string& what, const std::string& tensor,
                   const std::vector<int64_t>& shape, const std::vector<DcpPiece>& pieces) {
  VARVE_ASSIGN_OR_RETURN(const int64_t needed, NumElements(shape));
  std::vector<ShardLayout> layouts;
  std::vector<const ShardLayout*> pointers;
  for (const DcpPiece& piece : pieces) {
    ShardLayout layout = ShardLayout::Whole(shape);
    for (size_t i = 0; i < piece.sizes.size(); ++i) {
      layout.axes[i] = {{.begin = piece.offsets[i], .length = piece.sizes[i]}};
    }
    VARVE_RETURN_IF_ERROR(ValidateLayout(layout).WithContext(tensor));
    layouts.push_back(std::move(layout));
  }
  for (const ShardLayout& layout : layouts) pointers.push_back(&layout);
  const std::vector<size_t> originals = FindOriginals(pointers);
  bool is_distinct = true;
  for (size_t i = 0; i < originals.size(); ++i) is_distinct &= originals[i] == i;
  std::optional<int64_t> held;
  if (is_distinct) held = pointers.empty() ? 0 : CountDisjoint(pointers);
  const std::string name = what + ": tensor \"" + tensor + "\": ";
  if (!held) return Status::InvalidArgument(name + "two chunks have an element in common");
  if (*held == needed) return Status::Ok();
  return Status::InvalidArgument(name + "its chunks have " + std::to_string(*held) +
                                 " elements, expected " + std::to_string(needed));
}

std::shared_ptr<TensorBytes> JoinPieces(const std::vector<int64_t>& shape, uint64_t element_bytes,
                                        std::vector<DcpPiece> pieces) {
  const std::vector<int64_t> strides = RowMajor(shape);
  std::vector<Part> parts;
  for (DcpPiece& piece : pieces) {
    const int64_t first =
        std::inner_product(strides.begin(), strides.end(), piece.offsets.begin(), int64_t{0});
    uint64_t num_bytes = element_bytes;
    for (const int64_t length : piece.sizes) num_bytes *= static_cast<uint64_t>(length);
    parts.push_back({std::move(piece.sizes), static_cast<uint64_t>(first) * element_bytes,
                     num_bytes, std::move(piece.bytes)});
  }
  std::ranges::sort(parts, {}, &Part::begin);
  uint64_t end = 0;
  bool is_joined = true;
  for (const Part& part : parts) {
    is_joined = is_joined && part.begin == end && IsRun(shape, part.sizes);
    end = part.begin + part.num_bytes;
  }
  if (is_joined) return std::make_shared<JoinedBytes>(std::move(parts));
  return Assemble(shape, element_bytes, std::move(parts));
}

}  // namespace varve::internal::cli
