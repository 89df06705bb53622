// SPDX-License-Identifier: Apache-2.0
#include "bench/scale/tiny_state.h"

#include <array>
#include <cstdio>

#include "bench/state.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

constexpr std::array<int64_t, 1> kShape = {TinyState::kTensorBytes / 4};

std::string MakeName(uint64_t tensor) {
  char name[64];
  std::snprintf(name, sizeof name, "model.layers.%07llu.weight",
                static_cast<unsigned long long>(tensor));
  return name;
}

}  // namespace

TinyState::TinyState(uint64_t num_tensors, uint64_t seed)
    : num_tensors_(num_tensors), bytes_(num_tensors * kTensorBytes) {
  FillNoise(seed, bytes_);
  names_.reserve(num_tensors);
  for (uint64_t tensor = 0; tensor < num_tensors; ++tensor) names_.push_back(MakeName(tensor));
}

void TinyState::Change(uint64_t seed, uint64_t first, uint64_t stride) {
  for (uint64_t t = first; t < num_tensors_; t += stride) {
    FillNoise(Mix(seed, t), std::span(bytes_).subspan(t * kTensorBytes, kTensorBytes));
  }
}

SaveReport TinyState::Save(Store* store, uint64_t step) const {
  const auto writer = Must(store->Begin(step));
  for (uint64_t t = 0; t < num_tensors_; ++t) {
    Require(writer->Put(
        {.name = names_[t], .shape = kShape, .data = bytes_.data() + t * kTensorBytes}));
  }
  return Must(writer->Commit());
}

void TinyState::RequireRestores(const Store& store, uint64_t step) const {
  const auto reader = Must(store.OpenCheckpoint("main", step));
  std::vector<std::byte> found(bytes_.size());
  std::vector<ReadRequest> requests;
  for (uint64_t t = 0; t < num_tensors_; ++t) {
    const auto out = std::span(found).subspan(t * kTensorBytes, kTensorBytes);
    requests.push_back(ReadRequest::Tensor(names_[t], out));
  }
  Require(reader->ReadMany(requests));
  if (found != bytes_) Fail("step " + std::to_string(step) + " is not restored as it was saved");
}

}  // namespace varve::internal::bench
