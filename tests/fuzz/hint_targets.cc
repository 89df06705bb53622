// SPDX-License-Identifier: Apache-2.0
//
// Hints of trainers (varve/optimizer_step.h): any names and numbers, for tensors of any values.
// What a hint links is encoded as a save does it, and decodes to the same bytes. A hint that is
// wrong costs bytes, and never a bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/util.h"
#include "codec/frame.h"
#include "store/save/replayed_step.h"
#include "store/save/save_order.h"
#include "tests/codec/predict/optimizer.h"
#include "tests/fuzz/targets.h"

namespace varve::internal::fuzz {
namespace {

using testing::OptimizerState;
using testing::StateBytes;
using Raw = std::vector<std::byte>;

constexpr const char* kTensorNames[] = {"m", "v", "w", "m2", "v2", "w2"};
constexpr size_t kNumHintTensors = std::size(kTensorNames);
constexpr size_t kHintElements = 257;

// Reads the input from its front. Behind its end there are zeros.
class HintReader {
 public:
  explicit HintReader(std::span<const std::byte> input) : rest_(input) {}

  template <typename T>
  T Take() {
    T value{};
    const std::span<const std::byte> bytes = TakeBytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::span<const std::byte> TakeBytes(size_t size) {
    const auto taken = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  bool is_at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

// One of the tensors, or any text.
std::string TakeName(HintReader* reader) {
  const size_t choice = reader->Take<uint8_t>();
  if (choice < kNumHintTensors) return kTensorNames[choice];
  return std::string(AsString(reader->TakeBytes(choice % 8)));
}

OptimizerStep TakeHint(HintReader* reader) {
  OptimizerStep hint;
  hint.groups.resize(reader->Take<uint8_t>() % 4);
  for (OptimizerStep::Group& group : hint.groups) {
    for (double* const number :
         {&group.learning_rate, &group.beta1, &group.beta2, &group.eps, &group.weight_decay}) {
      *number = reader->Take<double>();
    }
  }
  hint.number = reader->Take<uint64_t>();
  hint.gradient_scale = reader->Take<double>();
  hint.parameters.resize(reader->Take<uint8_t>() % 6);
  for (OptimizerStep::Parameter& parameter : hint.parameters) {
    parameter.weight = TakeName(reader);
    parameter.moment = TakeName(reader);
    parameter.square = TakeName(reader);
    parameter.group = reader->Take<uint8_t>();
  }
  return hint;
}

// What the tensors hold before and after the step, in the order of their names.
struct HintedState {
  std::array<Raw, kNumHintTensors> before, after;
};

const HintedState& TrainedState() {
  static const HintedState trained = [] {
    HintedState made;
    const testing::Optimizer optimizer;
    for (const bool is_bf16 : {false, true}) {
      const OptimizerState from = testing::TrainedBy(optimizer, kHintElements);
      const StateBytes before(from), after(optimizer.Next(from, is_bf16, 7));
      const size_t first = is_bf16 ? 3 : 0;
      const auto put = [first](const StateBytes& state, auto* raws) {
        (*raws)[first] = state.moment;
        (*raws)[first + 1] = state.square;
        (*raws)[first + 2] = state.weight;
      };
      put(before, &made.before);
      put(after, &made.after);
    }
    return made;
  }();
  return trained;
}

// Some elements get other values, which may be no numbers.
HintedState TakeState(HintReader* reader) {
  HintedState state = TrainedState();
  while (!reader->is_at_end()) {
    const size_t tensor = reader->Take<uint8_t>(), element = reader->Take<uint8_t>();
    const auto bits = reader->Take<uint32_t>();
    auto& raws = tensor / kNumHintTensors % 2 == 0 ? state.before : state.after;
    std::memcpy(raws[tensor % kNumHintTensors].data() + 4 * element, &bits, sizeof(bits));
  }
  return state;
}

// The tensors of a save, some of which are not what a step needs.
struct HintedSave {
  HintedSave(const HintedState& all, HintReader* reader) : state(all) {
    for (size_t i = 0; i < kNumHintTensors; ++i) {
      const size_t how = reader->Take<uint8_t>();
      shapes[i] = {static_cast<int64_t>(kHintElements - how / 8 % 4)};
      const size_t bytes = 4 * static_cast<size_t>(shapes[i][0]);
      state.before[i].resize(bytes);
      state.after[i].resize(bytes);
      tensors.Add({.name = kTensorNames[i],
                   .dtype = how % 8 == 7 ? DType::kI32 : DType::kF32,
                   .shape = shapes[i],
                   .data = state.after[i].data(),
                   .shard = static_cast<uint32_t>(how / 32 % 2)});
    }
  }
  size_t IndexOf(const SaveTensor* tensor) const {
    size_t i = 0;
    while (state.after.at(i).data() != tensor->bytes()) ++i;
    return i;
  }

  HintedState state;
  std::array<std::array<int64_t, 1>, kNumHintTensors> shapes{};
  SaveTensors tensors;
};

struct HintedSources {
  std::vector<FrameBase> bases;
  void Add(std::span<const std::byte> raw) {
    bases.push_back({.address = {.save_id = 1, .ordinal = static_cast<uint32_t>(bases.size())},
                     .digest = ComputeDigest(1, raw),
                     .raw = raw,
                     .path_bytes = 1000});
  }
};

// Encodes what the target is after the step, and decodes it.
void EncodeTarget(ReplayTarget target, const AdamRecipe& recipe, const AdamState& before,
                  const AdamState& after, Entropy entropy) {
  HintedSources sources, own;
  std::span<const std::byte> raw;
  switch (target) {
    case ReplayTarget::kMoment:
      sources.Add(before.moment);
      raw = after.moment;
      break;
    case ReplayTarget::kSquare:
      for (const auto& each : {before.moment, after.moment, before.square}) sources.Add(each);
      raw = after.square;
      break;
    default:
      for (const auto& each : {after.moment, after.square, before.weight}) sources.Add(each);
      raw = after.weight;
  }
  own.Add(sources.bases.back().raw);
  const ReplayInput replay{
      .replay = {target, recipe}, .sources = sources.bases, .path_bytes = 1000};
  const bool is_replay = target != ReplayTarget::kMoment || recipe.has_bf16_gradient;
  EncodeInput input{.raw = raw,
                    .dtype = DType::kF32,
                    .digest = ComputeDigest(1, raw),
                    .base = own.bases.data(),
                    .replay = is_replay ? &replay : nullptr,
                    .entropy = entropy};
  if (target == ReplayTarget::kMoment && std::isfinite(recipe.beta1) && recipe.beta1 > 0) {
    input.scale = recipe.beta1;
    input.max_path_ratio = std::numeric_limits<double>::infinity();
  }
  Raw frame;
  Require(FrameEncoder().Encode(input, &frame).ok());
  const auto info = ParseFrame(frame);
  Require(info.ok() && info->raw_bytes == raw.size() && info->digest == input.digest);
  Require(ParsePlanes(frame).ok());
  FrameSourceBytes decoded;
  const HintedSources& used = info->replay.has_value() ? sources : own;
  Require(info->num_sources == 0 || info->num_sources == used.bases.size());
  for (size_t i = 0; i < info->num_sources; ++i) decoded[i] = used.bases[i].raw;
  Raw out(raw.size());
  Require(FrameDecoder().Decode(frame, decoded, out).ok());
  Require(std::ranges::equal(out, raw));
}

void SaveWithHint(std::span<const std::byte> input) {
  HintReader reader(input);
  const OptimizerStep hint = TakeHint(&reader);
  const auto entropy = static_cast<Entropy>(reader.Take<uint8_t>() % 3);
  std::array<std::byte, kNumHintTensors> how{};
  std::ranges::copy(reader.TakeBytes(how.size()), how.begin());
  const HintedState state = TakeState(&reader);
  HintReader kinds(how);
  HintedSave save(state, &kinds);
  const auto steps = LinkSteps(hint, &save.tensors);
  const std::vector<SaveTensor*> order = SaveOrder<SaveTensor>(&save.tensors.all());
  Require(std::set(order.begin(), order.end()).size() == save.tensors.size() &&
          order.size() == save.tensors.size());
  for (const auto& step : steps) {
    const auto states = [&](const std::array<Raw, kNumHintTensors>& raws) {
      const auto [moment, square, weight] = step->tensors;
      return AdamState{raws[save.IndexOf(moment)], raws[save.IndexOf(square)],
                       raws[save.IndexOf(weight)]};
    };
    const AdamState before = states(save.state.before), after = states(save.state.after);
    const AdamRecipe recipe = FitAdam(step->step, before, after);
    for (int target = 0; target < kNumReplayTargets; ++target) {
      EncodeTarget(static_cast<ReplayTarget>(target), recipe, before, after, entropy);
    }
  }
}

template <typename T>
void Append(T value, std::string* input) {
  input->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Two parameters. The second has BF16 gradients.
std::string HintSeed(double learning_rate, double scale, uint64_t number,
                     const std::vector<uint32_t>& others) {
  const AdamStep& step = testing::Optimizer().step;
  std::string input;
  Append(uint8_t{1}, &input);
  for (const double each : {learning_rate, step.beta1, step.beta2, step.eps, step.weight_decay}) {
    Append(each, &input);
  }
  Append(number, &input);
  Append(scale, &input);
  Append(uint8_t{2}, &input);
  for (const int first : {0, 3}) {
    for (const int each : {first + 2, first, first + 1, 0}) {
      Append(static_cast<uint8_t>(each), &input);
    }
  }
  Append(uint8_t{0}, &input);
  input.append(kNumHintTensors, '\0');
  for (size_t i = 0; i < others.size(); ++i) {
    Append(static_cast<uint8_t>(i), &input);
    Append(static_cast<uint8_t>(10 * i), &input);
    Append(others[i], &input);
  }
  return input;
}

std::vector<std::string> HintSeeds() {
  const AdamStep& step = testing::Optimizer().step;
  const std::vector<uint32_t> specials = {0x7FC00000, 0x7F800000, 0xFF800000, 0x80000000,
                                          1,          0xFFFFFFFF, 0x7F7FFFFF, 0x00800000};
  return {HintSeed(step.learning_rate, step.gradient_scale, step.number, {}),
          HintSeed(step.learning_rate, step.gradient_scale, step.number, specials),
          HintSeed(std::numeric_limits<double>::quiet_NaN(), 0, 0, specials),
          HintSeed(1e300, -1, ~uint64_t{0}, {})};
}

}  // namespace

std::vector<FuzzTarget> HintTargets() { return {{"optimizer_hint", SaveWithHint, HintSeeds()}}; }

}  // namespace varve::internal::fuzz
