// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/held_tensor.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/bytes_of.h"
#include "base/digest.h"
#include "base/glob.h"
#include "base/util.h"
#include "store/shards/strides.h"
#include "trainer_hooks/state/tied_tensors.h"

namespace varve::internal {

namespace {

ReplicaPolicy FindRule(std::span<const ReplicaRule> rules, std::string_view name) {
  const auto rule = std::find_if(rules.begin(), rules.end(),
                                 [&](const ReplicaRule& r) { return MatchesGlob(r.glob, name); });
  return rule == rules.end() ? ReplicaPolicy::kMustBeEqual : rule->policy;
}

// Numbers and strings one behind the other.
class Encoder {
 public:
  void Number(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void Text(std::string_view text) {
    Number(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  std::string Take() { return std::exchange(bytes_, {}); }
  size_t size() const { return bytes_.size(); }

 private:
  std::string bytes_;
};

// The reverse. After something that cannot be, all that follows is empty, and `ok` is false.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  int64_t Number() {
    int64_t value = 0;
    const std::string_view part = Take(sizeof value);
    if (ok_) std::memcpy(&value, part.data(), sizeof value);
    return value;
  }
  // How many entries follow, each of at least 8 bytes.
  size_t Count() {
    const int64_t n = Number();
    if (n < 0 || static_cast<uint64_t>(n) > bytes_.size() / 8) ok_ = false;
    return ok_ ? static_cast<size_t>(n) : 0;
  }
  std::string Text() {
    const int64_t n = Number();
    return std::string(Take(n < 0 ? SIZE_MAX : static_cast<size_t>(n)));
  }
  bool ok() const { return ok_; }

 private:
  std::string_view Take(size_t n) {
    if (n > bytes_.size()) ok_ = false;
    if (!ok_) return {};
    const std::string_view part = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return part;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

void EncodeLayout(const ShardLayout& layout, Encoder* to) {
  to->Number(static_cast<int64_t>(layout.axes.size()));
  for (size_t axis = 0; axis < layout.axes.size(); ++axis) {
    to->Number(layout.global_shape[axis]);
    to->Number(static_cast<int64_t>(layout.axes[axis].size()));
    for (const Segment& segment : layout.axes[axis]) {
      to->Number(segment.is_padding ? -1 : segment.begin);
      to->Number(segment.length);
    }
  }
  to->Number(layout.flat ? layout.flat->begin : -1);
  to->Number(layout.flat ? layout.flat->end : -1);
}

ShardLayout DecodeLayout(Decoder* from) {
  ShardLayout layout;
  for (size_t axes = from->Count(); axes > 0; --axes) {
    layout.global_shape.push_back(from->Number());
    std::vector<Segment>& segments = layout.axes.emplace_back();
    for (size_t n = from->Count(); n > 0; --n) {
      const int64_t begin = from->Number();
      segments.push_back({std::max<int64_t>(begin, 0), from->Number(), begin < 0});
    }
  }
  const int64_t begin = from->Number(), end = from->Number();
  if (begin >= 0) layout.flat = Range{begin, end};
  return layout;
}

// A HeldTensor, borrowed.
struct HeldView : TensorView {
  bool can_cut = false;
  ReplicaPolicy policy = ReplicaPolicy::kMustBeEqual;
  std::optional<Range> had{};
};

// What a rank holds, one tensor of a state after the other.
class Lister {
 public:
  explicit Lister(std::span<const ReplicaRule> rules) : rules_(rules) {}

  // Good until the next call. The tensor must stay until the last.
  HeldView Next(const StateTensor& tensor) {
    layout_ =
        Canonical(tensor.layout.has_value() ? *tensor.layout : ShardLayout::Whole(tensor.shape));
    HeldView view{tensor.View(),
                  IsDense(tensor.shape, tensor.strides) && DTypeBits(tensor.dtype) % 8 == 0,
                  FindRule(rules_, tensor.name),
                  {}};
    view.alias_of = {};
    view.layout = &layout_;
    const StateTensor* const first = tied_.Add(tensor);
    if (first != &tensor) view.alias_of = first->name;
    return view;
  }

 private:
  const std::span<const ReplicaRule> rules_;
  TiedTensors tied_;
  ShardLayout layout_;
};

void EncodeTensor(const HeldView& tensor, Encoder* to) {
  to->Text(tensor.name);
  to->Number(static_cast<int64_t>(tensor.dtype));
  EncodeLayout(*tensor.layout, to);
  to->Text(tensor.derived_from);
  to->Text(tensor.alias_of);
  to->Number(tensor.can_cut ? 1 : 0);
  to->Number(static_cast<int64_t>(tensor.policy));
  to->Number(static_cast<int64_t>(tensor.role));
  to->Number(tensor.had ? tensor.had->begin : -1);
  to->Number(tensor.had ? tensor.had->end : -1);
}

HeldTensor DecodeTensor(Decoder* from) {
  HeldTensor tensor;
  tensor.name = from->Text();
  tensor.dtype = static_cast<DType>(from->Number());
  tensor.layout = DecodeLayout(from);
  tensor.derived_from = from->Text();
  tensor.alias_of = from->Text();
  tensor.can_cut = from->Number() != 0;
  tensor.policy = static_cast<ReplicaPolicy>(from->Number());
  tensor.role = static_cast<TensorRole>(from->Number());
  const int64_t begin = from->Number(), end = from->Number();
  if (begin >= 0) tensor.had = Range{begin, end};
  return tensor;
}

}  // namespace

uint64_t HeldTensor::Bytes() const { return BytesOf(dtype, layout->NumLocal()); }

std::vector<HeldTensor> ListHeld(const TrainingState& state, std::span<const ReplicaRule> rules) {
  std::vector<HeldTensor> held;
  held.reserve(state.tensors.size());
  Lister lister(rules);
  for (const StateTensor& tensor : state.tensors) {
    const HeldView view = lister.Next(tensor);
    HeldTensor& h = held.emplace_back();
    static_cast<TensorSpec&>(h) = tensor;
    h.alias_of = view.alias_of;
    h.layout = *view.layout;
    h.can_cut = view.can_cut;
    h.policy = view.policy;
  }
  return held;
}

std::string EncodeHeld(std::span<const HeldTensor> tensors) {
  Encoder to;
  to.Number(static_cast<int64_t>(tensors.size()));
  for (const HeldTensor& tensor : tensors) {
    EncodeTensor({tensor.View(), tensor.can_cut, tensor.policy, tensor.had}, &to);
  }
  return to.Take();
}

Digest DigestHeld(const TrainingState& state, std::span<const ReplicaRule> rules) {
  constexpr size_t kPieceBytes = size_t{64} << 10;
  DigestStream digest(0);
  Lister lister(rules);
  Encoder to;
  to.Number(static_cast<int64_t>(state.tensors.size()));
  for (const StateTensor& tensor : state.tensors) {
    EncodeTensor(lister.Next(tensor), &to);
    if (to.size() >= kPieceBytes) digest.Add(AsBytes(to.Take()));
  }
  digest.Add(AsBytes(to.Take()));
  return digest.Get();
}

Result<std::vector<HeldTensor>> DecodeHeld(std::string_view bytes) {
  Decoder from(bytes);
  std::vector<HeldTensor> tensors;
  for (size_t n = from.Count(); n > 0; --n) tensors.push_back(DecodeTensor(&from));
  bool valid = from.ok() && EncodeHeld(tensors) == bytes;  // there is one way to write a list
  for (HeldTensor& tensor : tensors) {
    valid = valid && DTypeBits(tensor.dtype) > 0 && tensor.policy >= ReplicaPolicy{} &&
            tensor.policy <= ReplicaPolicy::kEqualButPadding &&
            static_cast<int>(tensor.role) < kNumTensorRoles &&
            ValidateLayout(*tensor.layout).ok() && Canonical(*tensor.layout) == tensor.layout;
    if (!valid) break;
    tensor.shape = tensor.layout->LocalShape();
    if (!tensor.had.has_value()) continue;
    valid = tensor.had->begin <= tensor.had->end && tensor.had->end <= tensor.layout->NumLocal();
  }
  if (valid) return tensors;
  return Status::Corruption(
      "the list of a rank's tensors is damaged: " + std::to_string(bytes.size()) + " bytes");
}

}  // namespace varve::internal
