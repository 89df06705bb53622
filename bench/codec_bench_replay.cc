// SPDX-License-Identifier: Apache-2.0
#include "bench/codec_bench_replay.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <span>

#include "base/digest.h"
#include "codec/frame.h"
#include "codec/predict/adam_replay.h"
#include "codec/predict/rounded_copy.h"

namespace varve::internal::bench {
namespace {

using Bytes = std::vector<std::byte>;

// The same elements of all tensors of a parameter.
struct Part {
  Bytes moment, square, weight, model;
  AdamState state() const { return {moment, square, weight}; }
};
struct Pair {
  Part before, after;
};

struct Encoded {
  AdamRecipe recipe;
  Bytes moment, square, weight;  // frames
};

double NumberOf(const File& file, const char* name) {
  return std::strtod(file.metadata.at(name).c_str(), nullptr);
}

AdamStep StepOf(const File& file) {
  return {.learning_rate = NumberOf(file, "lr"),
          .beta1 = NumberOf(file, "beta1"),
          .beta2 = NumberOf(file, "beta2"),
          .eps = NumberOf(file, "eps"),
          .weight_decay = NumberOf(file, "weight_decay"),
          .number = static_cast<uint64_t>(NumberOf(file, "step")),
          .gradient_scale = NumberOf(file, "clip_factor")};
}

class Replay {
 public:
  Replay(const AdamStep& step, Entropy entropy) : step_(step), entropy_(entropy) {}

  void Encode(const Pair& pair, Encoded* out) {
    const auto& [before, after] = pair;
    out->recipe = FitAdam(step_, before.state(), after.state());
    if (out->recipe.has_bf16_gradient) {
      EncodeReplayed(ReplayTarget::kMoment, out->recipe, {before.moment}, after.moment,
                     &out->moment);
    } else {
      const FrameBase base = BaseOf(before.moment);
      EncodeInput input = InputOf(after.moment);
      input.base = &base;
      input.scale = out->recipe.beta1;
      EncodeFrame(input, &out->moment);
    }
    EncodeReplayed(ReplayTarget::kSquare, out->recipe, {before.moment, after.moment, before.square},
                   after.square, &out->square);
    EncodeReplayed(ReplayTarget::kWeight, out->recipe, {after.moment, after.square, before.weight},
                   after.weight, &out->weight);
    if (!IsRoundedCopy(DType::kBF16, after.weight, after.model)) {
      Fail("a model is not the rounded copy of its master");
    }
  }

  // `out` has the sizes of the newer part.
  void Decode(const Part& before, const Encoded& in, Part* out) {
    DecodeFrame(in.moment, {before.moment}, out->moment);
    DecodeFrame(in.square, {before.moment, out->moment, before.square}, out->square);
    DecodeFrame(in.weight, {out->moment, out->square, before.weight}, out->weight);
    MakeRoundedCopy(DType::kBF16, out->weight, out->model);
  }

 private:
  static FrameBase BaseOf(std::span<const std::byte> raw) {
    return {.address = {.save_id = 1, .ordinal = 1}, .digest = {}, .raw = raw, .path_bytes = 1};
  }
  EncodeInput InputOf(std::span<const std::byte> raw) const {
    EncodeInput input;
    input.raw = raw;
    input.dtype = DType::kF32;
    input.entropy = entropy_;
    return input;
  }
  void EncodeReplayed(ReplayTarget target, const AdamRecipe& recipe,
                      const FrameSourceBytes& sources, std::span<const std::byte> raw,
                      Bytes* frame) {
    std::array<FrameBase, kMaxSources> bases;
    for (size_t i = 0; i < kMaxSources; ++i) bases[i] = BaseOf(sources[i]);
    const ReplayInput replay{.replay = {target, recipe},
                             .sources = std::span(bases).first(NumSources(target)),
                             .path_bytes = 1};
    EncodeInput input = InputOf(raw);
    input.replay = &replay;
    EncodeFrame(input, frame);
  }
  void EncodeFrame(const EncodeInput& input, Bytes* frame) {
    if (!encoder_.Encode(input, frame).ok()) Fail("a chunk was not encoded");
  }
  void DecodeFrame(const Bytes& frame, const FrameSourceBytes& sources, std::span<std::byte> out) {
    const Status status = decoder_.Decode(frame, sources, out);
    if (!status.ok()) Fail(status.ToString());
  }

  const AdamStep step_;
  const Entropy entropy_;
  FrameEncoder encoder_;
  FrameDecoder decoder_;
};

Bytes ElementsOf(const File& file, const std::string& name, size_t first, size_t num_elements) {
  const Tensor& tensor = file.tensors.at(name);
  const size_t element_bytes = static_cast<size_t>(DTypeBits(tensor.dtype) / 8);
  const auto begin = tensor.raw.begin() + static_cast<ptrdiff_t>(first * element_bytes);
  return {begin, begin + static_cast<ptrdiff_t>(num_elements * element_bytes)};
}

Part PartOf(const File& file, const std::string& parameter, size_t first, size_t n) {
  return {.moment = ElementsOf(file, "exp_avg" + parameter, first, n),
          .square = ElementsOf(file, "exp_avg_sq" + parameter, first, n),
          .weight = ElementsOf(file, "master" + parameter, first, n),
          .model = ElementsOf(file, "model" + parameter, first, n)};
}

std::vector<Pair> PairsOf(const File& before, const File& after) {
  std::vector<Pair> pairs;
  size_t num_tensors = 0;
  for (const auto& [name, tensor] : after.tensors) {
    if (!name.starts_with("master.")) continue;
    const std::string parameter = name.substr(name.find('.'));
    const size_t num_elements = tensor.raw.size() / sizeof(float);
    for (const char* kind : {"model", "exp_avg", "exp_avg_sq"}) {
      if (!after.tensors.contains(kind + parameter) || !before.tensors.contains(kind + parameter)) {
        Fail("there is no " + (kind + parameter));
      }
    }
    num_tensors += 4;
    for (size_t first = 0; first < num_elements; first += kChunkElements) {
      const size_t n = std::min<size_t>(kChunkElements, num_elements - first);
      pairs.push_back({PartOf(before, parameter, first, n), PartOf(after, parameter, first, n)});
    }
  }
  if (num_tensors != after.tensors.size()) Fail("not every tensor belongs to a parameter");
  return pairs;
}

double NumExact(std::span<const std::byte> a, std::span<const std::byte> b) {
  double exact = 0;
  for (size_t i = 0; i < a.size(); i += 4) {
    exact += std::memcmp(a.data() + i, b.data() + i, 4) == 0 ? 1 : 0;
  }
  return exact;
}

// Adds the elements of a pair that are predicted exactly.
void AddExact(const AdamRecipe& recipe, const Pair& pair, Replayed* to) {
  const auto& [before, after] = pair;
  Bytes out(after.moment.size()), gradient(out.size() / 2);
  if (recipe.has_bf16_gradient) {
    RecoverGradient(recipe, before.moment, after.moment, gradient);
    PredictMoment(recipe, before.moment, gradient, out);
    to->moment += NumExact(out, after.moment);
  }
  PredictSquare(recipe, before.moment, after.moment, before.square, out);
  to->square += NumExact(out, after.square);
  PredictWeight(recipe, after.moment, after.square, before.weight, out);
  to->weight += NumExact(out, after.weight);
}

}  // namespace

bool MayReplay(const File& before, const File& after) {
  for (const char* name : {"lr", "beta1", "beta2", "eps", "weight_decay", "step", "clip_factor"}) {
    if (!after.metadata.contains(name) || !before.metadata.contains(name)) return false;
  }
  const bool has_moments = std::any_of(after.tensors.begin(), after.tensors.end(), [](auto& each) {
    return each.first.starts_with("exp_avg_sq.");
  });
  return has_moments && NumberOf(before, "step") + 1 == NumberOf(after, "step");
}

Replayed MeasureReplay(const File& before, const File& after, Entropy entropy) {
  const std::vector<Pair> pairs = PairsOf(before, after);
  Replay replay(StepOf(after), entropy);
  Replayed replayed;
  Measured& result = replayed.measured;
  double num_elements = 0;
  std::vector<Encoded> encoded(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Part& part = pairs[i].after;
    Encoded& to = encoded[i];
    replay.Encode(pairs[i], &to);
    Part out = {Bytes(part.moment.size()), Bytes(part.square.size()), Bytes(part.weight.size()),
                Bytes(part.model.size())};
    replay.Decode(pairs[i].before, to, &out);
    if (out.moment != part.moment || out.square != part.square || out.weight != part.weight ||
        out.model != part.model) {
      Fail("a chunk did not decode to what was encoded");
    }
    result.raw_bytes +=
        part.moment.size() + part.square.size() + part.weight.size() + part.model.size();
    AddExact(to.recipe, pairs[i], &replayed);
    num_elements += static_cast<double>(part.moment.size() / sizeof(float));
    result.encoded_bytes += to.moment.size() + to.square.size() + to.weight.size();
  }
  double encode = 1e9, decode = 1e9;
  Encoded frames;
  Part out;
  for (int pass = 0; pass < kPasses; ++pass) {
    double start = CpuSeconds();
    for (const Pair& pair : pairs) replay.Encode(pair, &frames);
    encode = std::min(encode, CpuSeconds() - start);
    double seconds = 0;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const Part& part = pairs[i].after;
      out.moment.resize(part.moment.size());
      out.square.resize(part.square.size());
      out.weight.resize(part.weight.size());
      out.model.resize(part.model.size());
      start = CpuSeconds();
      replay.Decode(pairs[i].before, encoded[i], &out);
      seconds += CpuSeconds() - start;
    }
    decode = std::min(decode, seconds);
  }
  result.encode_gbps = static_cast<double>(result.raw_bytes) / encode / 1e9;
  result.decode_gbps = static_cast<double>(result.raw_bytes) / decode / 1e9;
  for (double* const share : {&replayed.moment, &replayed.square, &replayed.weight}) {
    *share /= num_elements;
  }
  return replayed;
}

}  // namespace varve::internal::bench
