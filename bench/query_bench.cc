// SPDX-License-Identifier: Apache-2.0
//
// Reads one tensor of 1 MiB at a random step: finds the checkpoint and the tensor, reads, verifies
// and decodes.
#include <algorithm>
#include <vector>

#include "bench/measure.h"
#include "bench/subjects.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

// Each step is new: noise that nothing shrinks, or a drift that is stored as deltas.
enum class Content { kNoise, kDrift };

void SetContent(Content content, uint64_t step, State* state) {
  if (content == Content::kDrift) return Drift(state, step);
  for (size_t t = 0; t < state->tensors.size(); ++t) {
    FillNoise(Mix(step, t), state->tensors[t].data);
  }
}

class Query : public Measure {
 public:
  Query(const Params& params, Content content)
      : params_(params),
        content_(content),
        place_(params.folder),
        state_(
            MakeNoise(static_cast<uint64_t>(params.query_tensors) * kChunkBytes, kChunkBytes, 5)) {
    if (content == Content::kDrift) {
      for (size_t t = 0; t < state_.tensors.size(); ++t) MakeWeights(t);
    }
    few_ = MakeStore(params.few_steps);
    many_ = MakeStore(params.many_steps);
  }

  Sample Once() override {
    const std::vector<double> few = Times(*few_, params_.few_steps);
    const std::vector<double> many = Times(*many_, params_.many_steps);
    const auto at = [](const std::vector<double>& sorted, double share) {
      return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))] * 1e3;
    };
    return {at(many, 0.5) / 1e3,
            {{"p50_ms", at(many, 0.5)},
             {"p99_ms", at(many, 0.99)},
             {"few_p50_ms", at(few, 0.5)},
             {"ratio", at(many, 0.5) / at(few, 0.5)}}};
  }

 private:
  // Words with random sign and mantissa near one value, so that planes shrink and drifts are
  // deltas.
  void MakeWeights(size_t t) {
    const std::span<std::byte> data = state_.tensors[t].data;
    for (size_t at = 3; at < data.size(); at += 4)
      data[at] = (data[at] & std::byte{0x80}) | std::byte{0x3c};
  }

  // A store of so many steps, opened for reading like a process that only queries.
  std::unique_ptr<Store> MakeStore(int num_steps) {
    const auto path = place_.NewPath("store");
    {
      const auto store = Must(Store::Create(path, WithThreads(params_)));
      for (int step = 0; step < num_steps; ++step) {
        SetContent(content_, static_cast<uint64_t>(step), &state_);
        Save(store.get(), state_, static_cast<uint64_t>(step));
      }
    }
    auto store = Must(Store::OpenForReading(path, WithThreads(params_).store));
    for (int i = 0; i < 5; ++i) {
      const auto step = static_cast<uint64_t>(i * (num_steps - 1) / 4);
      SetContent(content_, step, &state_);
      RequireRestores(*store, step, state_);
    }
    return store;
  }

  // Sorted seconds of single queries.
  std::vector<double> Times(const Store& store, int num_steps) {
    std::vector<double> times;
    std::vector<std::byte> out(kChunkBytes);
    for (int i = 0; i < params_.queries; ++i) {
      const uint64_t random = Mix(6, next_++);
      const uint64_t step = random % static_cast<uint64_t>(num_steps);
      const StateTensor& tensor = state_.tensors[(random >> 32) % state_.tensors.size()];
      times.push_back(Seconds([&] {
        const auto reader = Must(store.OpenCheckpoint("main", step));
        Require(reader->Read(tensor.name, out));
      }));
    }
    std::sort(times.begin(), times.end());
    return times;
  }

  const Params params_;
  const Content content_;
  Workplace place_;
  State state_;
  std::unique_ptr<Store> few_;
  std::unique_ptr<Store> many_;
  uint64_t next_ = 0;
};

}  // namespace

void RegisterQuery(const Params& params) {
  Register("query/noise", {.times = params.pairs},
           [=] { return std::make_unique<Query>(params, Content::kNoise); });
  Register("query/drift", {.times = params.pairs},
           [=] { return std::make_unique<Query>(params, Content::kDrift); });
}

}  // namespace varve::internal::bench
