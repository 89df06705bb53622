// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/held_digest.h"

#include <algorithm>
#include <new>
#include <vector>

#include "base/bytes_of.h"
#include "store/shards/overlap.h"
#include "store/shards/strides.h"

namespace varve::internal {

namespace {

constexpr uint64_t kRanksSeed = 0;  // of digests that stay among ranks
constexpr size_t kBufferBytes = size_t{1} << 20;

// Digests bytes piece by piece: of a full buffer the digest stays in its place.
class Digester {
 public:
  // Where `bytes` of them, at most kBufferBytes, are to be put.
  std::byte* Take(size_t bytes) {
    if (buffer_.size() + bytes > kBufferBytes + sizeof(Digest)) Fold();
    buffer_.resize(buffer_.size() + bytes);
    return buffer_.data() + buffer_.size() - bytes;
  }
  Digest Finish() const { return ComputeDigest(kRanksSeed, buffer_); }

 private:
  void Fold() {
    const Digest digest = Finish();
    const auto* const bytes = reinterpret_cast<const std::byte*>(&digest);
    buffer_.assign(bytes, bytes + sizeof digest);
  }
  std::vector<std::byte> buffer_;
};

void Add(const StateTensor& tensor, const CopyRun& run, Digester* to) {
  const uint64_t element_bytes = BytesOf(tensor.dtype, 1);
  const auto* const data = static_cast<const std::byte*>(tensor.data);
  const bool is_dense = IsDense(tensor.shape, tensor.strides);
  for (uint64_t done = 0; done < run.length;) {
    const uint64_t first = run.source + done;
    const uint64_t count = std::min(run.length - done, kBufferBytes / element_bytes);
    std::byte* const out = to->Take(count * element_bytes);
    if (is_dense) {
      std::copy_n(data + first * element_bytes, count * element_bytes, out);
    } else {
      Strides(tensor.shape, tensor.strides)
          .Gather(data, element_bytes, static_cast<int64_t>(first), {out, count * element_bytes});
    }
    done += count;
  }
}

}  // namespace

std::optional<Digest> DigestWithoutPadding(const StateTensor& tensor, const ShardLayout& layout) {
  if (tensor.device != kHost || DTypeBits(tensor.dtype) % 8 != 0) return std::nullopt;
  try {
    Digester digester;
    Overlap(layout, ShardLayout::Whole(layout.global_shape))
        .ForEachRun(Overlap::kEverywhere, [&](const CopyRun& run) { Add(tensor, run, &digester); });
    return digester.Finish();
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

}  // namespace varve::internal
