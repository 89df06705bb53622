// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/save_state.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <type_traits>
#include <utility>

#include "base/digest.h"
#include "store/shards/strides.h"
#include "trainer_hooks/state/state_shards.h"
#include "trainer_hooks/state/tied_tensors.h"

namespace varve::internal {

namespace {

std::vector<uint32_t> FindFirsts(const std::vector<StateTensor>& tensors) {
  std::vector<uint32_t> firsts;
  firsts.reserve(tensors.size());
  TiedTensors tied;
  tied.Reserve(tensors.size());
  for (const StateTensor& tensor : tensors) {
    firsts.push_back(static_cast<uint32_t>(tied.Add(tensor) - tensors.data()));
  }
  return firsts;
}

// The digest of values of any types, one behind the other.
class ValuesDigest {
 public:
  template <typename T>
  requires std::has_unique_object_representations_v<T>
  void Add(const T* values, size_t size) {
    AddBytes(reinterpret_cast<const std::byte*>(values), size * sizeof(T));
  }
  Digest Get() {
    Flush();
    return digest_.Get();
  }

 private:
  // The buffer makes many small values one call of the digest.
  void AddBytes(const std::byte* bytes, size_t size) {
    if (size > buffer_.size() - used_) Flush();
    if (size > buffer_.size()) return digest_.Add({bytes, size});
    std::copy_n(bytes, size, buffer_.data() + used_);
    used_ += size;
  }
  void Flush() { digest_.Add(std::span(buffer_).first(std::exchange(used_, 0))); }

  DigestStream digest_{/*seed=*/0};
  std::array<std::byte, 4096> buffer_;
  size_t used_ = 0;
};

void AddLayout(const ShardLayout& layout, ValuesDigest* digest) {
  const uint64_t sizes[] = {layout.global_shape.size(), layout.axes.size(),
                            uint64_t{layout.flat.has_value()}};
  digest->Add(sizes, std::size(sizes));
  digest->Add(layout.global_shape.data(), layout.global_shape.size());
  for (const std::vector<Segment>& segments : layout.axes) {
    const uint64_t size = segments.size();
    digest->Add(&size, 1);
    for (const Segment& segment : segments) {
      const int64_t values[] = {segment.begin, segment.length, int64_t{segment.is_padding}};
      digest->Add(values, std::size(values));
    }
  }
  if (layout.flat.has_value()) digest->Add(&*layout.flat, 1);
}

// All of a tensor but alias_of, which does not come from the state. The sizes come first, so that
// no two tensors are the same bytes.
void AddTensor(const StateTensor& tensor, ValuesDigest* digest) {
  const uint64_t fixed[] = {tensor.name.size(),
                            tensor.shape.size(),
                            tensor.derived_from.size(),
                            tensor.strides.size(),
                            uint64_t{tensor.layout.has_value()},
                            static_cast<uint64_t>(tensor.dtype),
                            static_cast<uint64_t>(tensor.role),
                            static_cast<uint64_t>(tensor.device),
                            reinterpret_cast<uint64_t>(tensor.data)};
  digest->Add(fixed, std::size(fixed));
  digest->Add(tensor.name.data(), tensor.name.size());
  digest->Add(tensor.shape.data(), tensor.shape.size());
  digest->Add(tensor.derived_from.data(), tensor.derived_from.size());
  digest->Add(tensor.strides.data(), tensor.strides.size());
  if (tensor.layout.has_value()) AddLayout(*tensor.layout, digest);
}

Digest DigestAsGiven(std::span<const StateTensor> tensors) {
  constexpr size_t kAhead = 8;  // of what is not in the processor's cache
  ValuesDigest digest;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i + kAhead < tensors.size()) {
      __builtin_prefetch(tensors[i + kAhead].name.data());
      __builtin_prefetch(tensors[i + kAhead].shape.data());
    }
    AddTensor(tensors[i], &digest);
  }
  return digest.Get();
}

}  // namespace

bool StateTensors::AreOf(std::span<const StateTensor> given) const {
  return given.size() == tensors.size() && DigestAsGiven(given) == as_given;
}

std::shared_ptr<const StateTensors> MakeStateTensors(std::vector<StateTensor> tensors) {
  const Digest as_given = DigestAsGiven(tensors);
  for (StateTensor& tensor : tensors) {
    if (IsDense(tensor.shape, tensor.strides)) tensor.strides.clear();
    if (tensor.layout.has_value()) tensor.layout = Canonical(*std::move(tensor.layout));
  }
  std::vector<uint32_t> shards = NumberShards(tensors);
  std::vector<uint32_t> firsts = FindFirsts(tensors);
  for (size_t i = 0; i < firsts.size(); ++i) {
    tensors[i].alias_of = firsts[i] == i ? "" : tensors[firsts[i]].name;
  }
  return std::make_shared<const StateTensors>(
      StateTensors{std::move(tensors), std::move(shards), std::move(firsts), as_given});
}

std::shared_ptr<SaveState> MakeSaveState(const TrainingState& state,
                                         std::shared_ptr<const StateTensors> tensors) {
  return std::make_shared<SaveState>(SaveState{std::move(tensors), state.items, state.trainer,
                                               state.topology, state.metrics, state.tags});
}

std::shared_ptr<SaveState> MakeSaveState(TrainingState&& state,
                                         std::shared_ptr<const StateTensors> known) {
  const bool is_known = known != nullptr && known->AreOf(state.tensors);
  if (!is_known) known = MakeStateTensors(std::move(state.tensors));
  return std::make_shared<SaveState>(SaveState{std::move(known), std::move(state.items),
                                               std::move(state.trainer), std::move(state.topology),
                                               std::move(state.metrics), std::move(state.tags)});
}

}  // namespace varve::internal
