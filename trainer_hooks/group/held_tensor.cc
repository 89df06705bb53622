// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/held_tensor.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/digest.h"
#include "base/glob.h"
#include "base/util.h"
#include "store/shards/regions.h"
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
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  void Number(int64_t value) { Append(std::as_bytes(std::span(&value, 1))); }
  void Text(std::string_view text) {
    Number(static_cast<int64_t>(text.size()));
    Append(AsBytes(text));
  }
  void Append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> Take() && { return std::move(bytes_); }
  void Clear() { bytes_.clear(); }  // the memory stays, for what comes next

 private:
  std::vector<std::byte> bytes_;
};

// The reverse. After something that cannot be, all that follows is empty, and `ok` is false.
class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : bytes_(bytes) {}

  int64_t Number() {
    int64_t value = 0;
    const std::span<const std::byte> part = Take(sizeof value);
    if (ok_) std::memcpy(&value, part.data(), sizeof value);
    return value;
  }
  // How many entries follow, each of at least 8 bytes.
  size_t Count() {
    const int64_t n = Number();
    if (n < 0 || static_cast<uint64_t>(n) > bytes_.size() / 8) ok_ = false;
    return ok_ ? static_cast<size_t>(n) : 0;
  }
  std::string_view Text() {
    const int64_t n = Number();
    return AsString(Take(n < 0 ? SIZE_MAX : static_cast<size_t>(n)));
  }
  bool ok() const { return ok_; }
  std::span<const std::byte> rest() const { return bytes_; }

 private:
  std::span<const std::byte> Take(size_t n) {
    if (n > bytes_.size()) ok_ = false;
    if (!ok_) return {};
    const std::span<const std::byte> part = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return part;
  }

  std::span<const std::byte> bytes_;
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

void EncodeTensor(const HeldTensor& tensor, Encoder* to) {
  to->Text(tensor.name);
  to->Number(static_cast<int64_t>(tensor.dtype));
  to->Append(AsBytes(tensor.layout));
  to->Text(tensor.derived_from);
  to->Text(tensor.alias_of);
  to->Text(tensor.moment_of);
  to->Number(tensor.can_cut ? 1 : 0);
  to->Number(static_cast<int64_t>(tensor.policy));
  to->Number(static_cast<int64_t>(tensor.role));
  to->Number(tensor.had ? tensor.had->begin : -1);
  to->Number(tensor.had ? tensor.had->end : -1);
}

// Finds the bytes of a layout, and returns the number of elements of its local tensor. nullopt: the
// layout is not valid or not canonical, or LayoutBytes writes it in another way.
std::optional<int64_t> DecodeLayoutBytes(Decoder* from, std::string_view* bytes) {
  const std::span<const std::byte> rest = from->rest();
  const ShardLayout layout = DecodeLayout(from);
  *bytes = AsString(rest.first(rest.size() - from->rest().size()));
  const bool is_valid = from->ok() && ValidateLayout(layout).ok() && Canonical(layout) == layout &&
                        LayoutBytes(layout) == *bytes;
  return is_valid ? std::optional(layout.NumLocal()) : std::nullopt;
}

bool IsValid(const HeldTensor& tensor, int64_t num_local) {
  return DTypeBits(tensor.dtype) > 0 && tensor.policy >= ReplicaPolicy{} &&
         tensor.policy <= ReplicaPolicy::kEqualButPadding &&
         static_cast<int>(tensor.role) < kNumTensorRoles &&
         (!tensor.had.has_value() ||
          (tensor.had->begin <= tensor.had->end && tensor.had->end <= num_local));
}

// nullopt: it is not valid.
std::optional<HeldTensor> DecodeTensor(Decoder* from) {
  HeldTensor tensor;
  tensor.name = from->Text();
  tensor.dtype = static_cast<DType>(from->Number());
  const std::optional<int64_t> num_local = DecodeLayoutBytes(from, &tensor.layout);
  tensor.derived_from = from->Text();
  tensor.alias_of = from->Text();
  tensor.moment_of = from->Text();
  tensor.can_cut = from->Number() != 0;
  tensor.policy = static_cast<ReplicaPolicy>(from->Number());
  tensor.role = static_cast<TensorRole>(from->Number());
  const int64_t begin = from->Number(), end = from->Number();
  if (begin >= 0) tensor.had = Range{begin, end};
  const bool is_valid = from->ok() && num_local.has_value() && IsValid(tensor, *num_local);
  return is_valid ? std::optional(tensor) : std::nullopt;
}

// The weight of each moment that the state's optimizer names.
std::unordered_map<std::string_view, std::string_view> WeightsOf(const TrainingState& state) {
  std::unordered_map<std::string_view, std::string_view> weights;
  if (state.optimizer_step == nullptr) return weights;
  weights.reserve(2 * state.optimizer_step->parameters.size());
  for (const OptimizerStep::Parameter& parameter : state.optimizer_step->parameters) {
    weights.emplace(parameter.moment, parameter.weight);
    weights.emplace(parameter.square, parameter.weight);
  }
  return weights;
}

// Gives `use` one tensor of a state after the other, as a rank holds it, without `had`.
template <typename Use>
void ForEachHeld(const TrainingState& state, std::span<const ReplicaRule> rules, const Use& use) {
  TiedTensors tied;
  Encoder layout;  // of the tensor that is used
  const auto weights = WeightsOf(state);
  for (const StateTensor& tensor : state.tensors) {
    const StateTensor* const first = tied.Add(tensor);
    const auto weight = weights.find(tensor.name);
    layout.Clear();
    EncodeLayout(Canonical(LayoutOf(tensor)), &layout);
    use(HeldTensor{
        .name = tensor.name,
        .dtype = tensor.dtype,
        .role = tensor.role,
        .derived_from = tensor.derived_from,
        .alias_of = first == &tensor ? std::string_view() : std::string_view(first->name),
        .moment_of = weight == weights.end() ? std::string_view() : weight->second,
        .layout = AsString(layout.bytes()),
        .can_cut = IsDense(tensor.shape, tensor.strides) && DTypeBits(tensor.dtype) % 8 == 0,
        .policy = FindRule(rules, tensor.name)});
  }
}

}  // namespace

ShardLayout HeldTensor::Layout() const {
  Decoder from(AsBytes(layout));
  return DecodeLayout(&from);
}

Digest HeldTensor::Key() const {
  const Digest of_name = ComputeDigest(0, AsBytes(name));
  Encoder to;
  to.Number(static_cast<int64_t>(of_name.lo));
  to.Number(static_cast<int64_t>(of_name.hi));
  to.Number(static_cast<int64_t>(dtype));
  to.Append(AsBytes(layout));
  return ComputeDigest(0, to.bytes());
}

std::string LayoutBytes(const ShardLayout& layout) {
  Encoder to;
  EncodeLayout(layout, &to);
  return std::string(AsString(to.bytes()));
}

std::vector<std::byte> EncodeHeld(std::span<const HeldTensor> tensors) {
  Encoder to;
  to.Number(static_cast<int64_t>(tensors.size()));
  for (const HeldTensor& tensor : tensors) EncodeTensor(tensor, &to);
  return std::move(to).Take();
}

std::vector<std::byte> EncodeHeld(
    const TrainingState& state, std::span<const ReplicaRule> rules,
    const std::function<std::optional<Range>(const HeldTensor&)>& had) {
  size_t bytes = sizeof(int64_t);
  Encoder one, to;
  ForEachHeld(state, rules, [&](const HeldTensor& tensor) {
    one.Clear();
    EncodeTensor(tensor, &one);
    bytes += one.bytes().size();
  });
  to.Reserve(bytes);  // else the bytes would be copied each time that their memory grows
  to.Number(static_cast<int64_t>(state.tensors.size()));
  ForEachHeld(state, rules, [&](HeldTensor tensor) {
    if (had != nullptr) tensor.had = had(tensor);
    EncodeTensor(tensor, &to);
  });
  return std::move(to).Take();
}

Digest DigestHeld(const TrainingState& state, std::span<const ReplicaRule> rules) {
  constexpr size_t kPieceBytes = size_t{64} << 10;
  DigestStream digest(0);
  Encoder to;
  to.Number(static_cast<int64_t>(state.tensors.size()));
  ForEachHeld(state, rules, [&](const HeldTensor& tensor) {
    EncodeTensor(tensor, &to);
    if (to.bytes().size() < kPieceBytes) return;
    digest.Add(to.bytes());
    to.Clear();
  });
  digest.Add(to.bytes());
  return digest.Get();
}

Result<std::vector<HeldTensor>> DecodeHeld(std::span<const std::byte> bytes) {
  Decoder from(bytes);
  std::vector<HeldTensor> tensors;
  Encoder again;
  const size_t n = from.Count();
  bool valid = from.ok();
  while (valid && tensors.size() < n) {
    const std::span<const std::byte> rest = from.rest();
    const std::optional<HeldTensor> tensor = DecodeTensor(&from);
    valid = tensor.has_value();
    if (!valid) break;
    tensors.push_back(*tensor);
    again.Clear();
    EncodeTensor(*tensor, &again);  // there is one way to write a list
    valid = std::ranges::equal(again.bytes(), rest.first(rest.size() - from.rest().size()));
  }
  if (valid && from.rest().empty()) return tensors;
  return Status::Corruption(
      "the list of a rank's tensors is damaged: " + std::to_string(bytes.size()) + " bytes");
}

}  // namespace varve::internal
