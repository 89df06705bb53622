// SPDX-License-Identifier: Apache-2.0
#include "bench/state.h"

#include <algorithm>
#include <cstring>

#include "base/bytes_of.h"
#include "bench/workplace.h"
#include "cli/formats/safetensors_files.h"
#include "codec/predict/rounded_copy.h"

namespace varve::internal::bench {
namespace {

constexpr size_t kAlignment = 64;
constexpr uint32_t kDriftBits = 0x3f;  // of an FP32 word

uint64_t BytesOf(const StateTensor& tensor) { return Must(NumBytes(tensor.dtype, tensor.shape)); }

// Gives every tensor its bytes in one zeroed allocation.
State Allocate(std::vector<StateTensor> tensors) {
  State state;
  state.tensors = std::move(tensors);
  size_t total = 0;
  for (const StateTensor& tensor : state.tensors) {
    total += (BytesOf(tensor) + kAlignment - 1) / kAlignment * kAlignment;
  }
  state.memory = std::make_unique<std::byte[]>(total);
  std::byte* at = state.memory.get();
  for (StateTensor& tensor : state.tensors) {
    tensor.data = {at, BytesOf(tensor)};
    at += (tensor.data.size() + kAlignment - 1) / kAlignment * kAlignment;
  }
  return state;
}

StateTensor* Find(State* state, const std::string& name) {
  const auto it = std::find_if(state->tensors.begin(), state->tensors.end(),
                               [&](const StateTensor& tensor) { return tensor.name == name; });
  return it == state->tensors.end() ? nullptr : &*it;
}

// Rounded copies from their sources.
void FillDerived(State* state) {
  for (StateTensor& tensor : state->tensors) {
    if (tensor.derived_from.empty()) continue;
    MakeRoundedCopy(tensor.dtype, Find(state, tensor.derived_from)->data, tensor.data);
  }
}

// About normal, with a variance of one: the sum of four uniform numbers.
double Normal(uint64_t seed, uint64_t i) {
  const uint64_t bits = Mix(seed, i);
  double sum = 0;
  for (int shift = 0; shift < 64; shift += 16) sum += static_cast<double>(bits >> shift & 0xffff);
  return (sum / 65536.0 - 2.0) * 1.7320508;
}

void FillFloats(uint64_t seed, double scale, bool square, std::span<std::byte> out) {
  for (size_t i = 0; i < out.size() / sizeof(float); ++i) {
    const double normal = Normal(seed, i);
    const auto value = static_cast<float>(scale * (square ? normal * normal : normal));
    std::memcpy(out.data() + i * sizeof(float), &value, sizeof(value));
  }
}

}  // namespace

uint64_t State::bytes() const {
  uint64_t sum = 0;
  for (const StateTensor& tensor : tensors) sum += tensor.data.size();
  return sum;
}

State State::EmptyCopy() const { return Allocate(tensors); }

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void FillNoise(uint64_t seed, std::span<std::byte> out) {
  for (size_t at = 0; at < out.size(); at += 8) {
    const uint64_t word = Mix(seed, at);
    std::memcpy(out.data() + at, &word, std::min<size_t>(8, out.size() - at));
  }
}

State MakeNoise(uint64_t bytes, uint64_t tensor_bytes, uint64_t seed) {
  std::vector<StateTensor> tensors;
  for (uint64_t at = 0; at < bytes; at += tensor_bytes) {
    const auto elements = static_cast<int64_t>(std::min(tensor_bytes, bytes - at) / 4);
    tensors.push_back({{.name = "model.layers." + std::to_string(tensors.size()) + ".mlp.weight",
                        .shape = {elements}}});
  }
  State state = Allocate(std::move(tensors));
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    FillNoise(Mix(seed, i), state.tensors[i].data);
  }
  return state;
}

State MakeTrained(uint64_t bytes, uint64_t seed) {
  constexpr uint64_t kBytesPerParameter = 2 + 4 + 4 + 4;
  constexpr uint64_t kLayers = 4;
  const auto elements = static_cast<int64_t>(bytes / kBytesPerParameter / kLayers);
  std::vector<StateTensor> tensors;
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = ".layers." + std::to_string(layer) + ".weight";
    tensors.push_back({{.name = "model" + name,
                        .dtype = DType::kBF16,
                        .shape = {elements},
                        .derived_from = "master" + name}});
    tensors.push_back({{.name = "master" + name, .shape = {elements}}});
    tensors.push_back({{.name = "exp_avg" + name, .shape = {elements}}});
    tensors.push_back({{.name = "exp_avg_sq" + name, .shape = {elements}}});
  }
  State state = Allocate(std::move(tensors));
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const StateTensor& tensor = state.tensors[i];
    if (tensor.dtype != DType::kF32) continue;
    const bool square = tensor.name.starts_with("exp_avg_sq");
    const double scale = tensor.name.starts_with("master") ? 0.02 : square ? 1e-8 : 1e-4;
    FillFloats(Mix(seed, i), scale, square, tensor.data);
  }
  FillDerived(&state);
  return state;
}

State LoadTrained(const std::filesystem::path& file, uint64_t bytes) {
  const auto files = Must(formats::SafetensorsFiles::Open({&file, 1}));
  uint64_t file_bytes = 0;
  for (const auto& tensor : files.tensors()) file_bytes += tensor.data.size();
  if (file_bytes == 0) Fail(file.string() + " holds no tensors");
  const auto copies = static_cast<int64_t>(std::max<uint64_t>(1, bytes / file_bytes));
  std::vector<StateTensor> tensors;
  for (const auto& from : files.tensors()) {
    if (from.shape.empty()) Fail(file.string() + ": " + from.name + " has no axis to repeat");
    StateTensor& tensor = tensors.emplace_back();
    tensor.name = from.name;
    tensor.dtype = from.dtype;
    tensor.shape = from.shape;
    tensor.shape[0] *= copies;
    if (from.name.starts_with("model.")) tensor.derived_from = "master" + from.name.substr(5);
  }
  State state = Allocate(std::move(tensors));
  for (size_t t = 0; t < state.tensors.size(); ++t) {
    std::vector<std::byte> from(files.tensors()[t].data.size());
    Require(files.tensors()[t].file->Read(files.tensors()[t].data, from.data()));
    const size_t element_bytes = varve::internal::BytesOf(state.tensors[t].dtype, 1);
    for (int64_t copy = 0; copy < copies && !from.empty(); ++copy) {
      constexpr size_t kElementsPerCopy = 7919;  // prime
      const size_t shift =
          static_cast<size_t>(copy) * kElementsPerCopy * element_bytes % from.size();
      std::byte* const to = state.tensors[t].data.data() + static_cast<size_t>(copy) * from.size();
      std::rotate_copy(from.begin(), from.begin() + static_cast<ptrdiff_t>(shift), from.end(), to);
    }
  }
  return state;
}

void Drift(State* state, uint64_t step) {
  for (size_t t = 0; t < state->tensors.size(); ++t) {
    const StateTensor& tensor = state->tensors[t];
    if (tensor.dtype != DType::kF32) continue;
    const uint64_t key = Mix(step, t);
    for (size_t i = 0; i < tensor.data.size() / 4; ++i) {
      uint32_t word;
      std::memcpy(&word, tensor.data.data() + 4 * i, sizeof(word));
      word = (word & ~kDriftBits) | (static_cast<uint32_t>(Mix(key, i)) & kDriftBits);
      std::memcpy(tensor.data.data() + 4 * i, &word, sizeof(word));
    }
  }
  FillDerived(state);
}

SaveReport Save(Store* store, const State& state, uint64_t step) {
  const auto writer = Must(store->Begin(step));
  for (const StateTensor& tensor : state.tensors) {
    Require(writer->Put({.name = tensor.name,
                         .dtype = tensor.dtype,
                         .shape = tensor.shape,
                         .data = tensor.data.data(),
                         .derived_from = tensor.derived_from}));
  }
  return Must(writer->Commit());
}

void Restore(const Store& store, uint64_t step, State* out) {
  const auto reader = Must(store.OpenCheckpoint("main", step));
  std::vector<ReadRequest> requests;
  for (const StateTensor& tensor : out->tensors) {
    requests.push_back(ReadRequest::Tensor(tensor.name, tensor.data));
  }
  Require(reader->ReadMany(requests));
}

void RequireRestores(const Store& store, uint64_t step, const State& state) {
  State found = state.EmptyCopy();
  Restore(store, step, &found);
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    if (!std::ranges::equal(state.tensors[i].data, found.tensors[i].data)) {
      Fail("step " + std::to_string(step) + ": " + state.tensors[i].name +
           " is not restored as it was saved");
    }
  }
}

}  // namespace varve::internal::bench
