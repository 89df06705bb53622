// SPDX-License-Identifier: Apache-2.0
//
// Saves everything, a state of which 1 % changed, and a state that did not change.
#include <functional>

#include "bench/baselines.h"
#include "bench/measure.h"
#include "bench/subjects.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

namespace fs = std::filesystem;

// A way to write a state to `path`. Its counters start with `prefix`.
struct Baseline {
  std::string prefix;
  std::function<void(const fs::path& path, const State& state)> write;
};

// A full save into a new store, compared with baselines that write the same bytes.
class FullSave : public Measure {
 public:
  FullSave(const Params& params, State state, std::vector<Baseline> baselines)
      : params_(params),
        place_(params.folder),
        state_(std::move(state)),
        baselines_(std::move(baselines)) {
    const auto store = Must(Store::Create(place_.NewPath("verify"), WithThreads(params_)));
    Save(store.get(), state_, 1);
    RequireRestores(*store, 1, state_);
  }

  Sample Once() override {
    std::map<std::string, double> baseline_seconds;
    for (const Baseline& baseline : baselines_) {
      const fs::path file = place_.NewPath("baseline");
      place_.Settle();
      baseline_seconds[baseline.prefix] = Seconds([&] { baseline.write(file, state_); });
      place_.Remove(file);
    }

    const fs::path path = place_.NewPath("store");
    auto store = Must(Store::Create(path, WithThreads(params_)));
    const uint64_t empty = DiskBytes(path);
    place_.Settle();
    SaveReport report;
    const double save = Seconds([&] { report = Save(store.get(), state_, 1); });
    const uint64_t disk = DiskBytes(path) - empty;
    store.reset();
    place_.Remove(path);

    const auto logical = static_cast<double>(state_.bytes());
    Sample sample{save,
                  {{"gb_per_s", logical / save / 1e9},
                   {"stored_share", static_cast<double>(report.stored_bytes) / logical},
                   {"disk_share", static_cast<double>(disk) / logical}}};
    for (const auto& [prefix, seconds] : baseline_seconds) {
      sample.counters[prefix + "baseline_ms"] = seconds * 1e3;
      sample.counters[prefix + "ratio"] = save / seconds;
    }
    return sample;
  }

 private:
  const Params params_;
  Workplace place_;
  const State state_;
  const std::vector<Baseline> baselines_;
};

// A save in which one chunk in a hundred is new. The baseline is a digest pass over everything and
// a raw write of those chunks.
class OnePercent : public Measure {
 public:
  explicit OnePercent(const Params& params)
      : params_(params),
        place_(params.folder),
        state_(MakeNoise(params.little_changed_bytes, params.tensor_bytes, 2)),
        store_(Must(Store::Create(place_.NewPath("store"), WithThreads(params)))) {
    Save(store_.get(), state_, 0);
    Change();
    Save(store_.get(), state_, step_);
    RequireRestores(*store_, step_, state_);
  }

  Sample Once() override {
    const std::vector<std::span<const std::byte>> changed = Change();
    const fs::path file = place_.NewPath("baseline");
    const double digest = Seconds([&] { DigestPass(state_, params_.num_threads); });
    place_.Settle();
    const double write = Seconds([&] { WriteRaw(file, changed, WriteBack::kAtSync); });
    place_.Remove(file);
    const double save = Seconds([&] { Save(store_.get(), state_, step_); });
    const double allowed = 1.2 * (digest + write) + 0.030;
    return {save,
            {{"digest_ms", digest * 1e3},
             {"write_ms", write * 1e3},
             {"allowed_ms", allowed * 1e3},
             {"changed_bytes", static_cast<double>(changed.size() * kChunkBytes)},
             {"share_of_allowed", save / allowed}}};
  }

 private:
  // Writes new noise into one chunk of each hundred. Which chunk it is moves from step to step.
  std::vector<std::span<const std::byte>> Change() {
    ++step_;
    std::vector<std::span<const std::byte>> changed;
    uint64_t number = 0;
    for (const StateTensor& tensor : state_.tensors) {
      for (size_t at = 0; at + kChunkBytes <= tensor.data.size(); at += kChunkBytes) {
        if (number++ % 100 != step_ * 37 % 100) continue;
        FillNoise(Mix(step_, number), tensor.data.subspan(at, kChunkBytes));
        changed.emplace_back(tensor.data.subspan(at, kChunkBytes));
      }
    }
    return changed;
  }

  const Params params_;
  Workplace place_;
  const State state_;
  const std::unique_ptr<Store> store_;
  uint64_t step_ = 0;
};

// A save in which nothing is new, compared with a digest pass.
class Unchanged : public Measure {
 public:
  explicit Unchanged(const Params& params)
      : params_(params),
        place_(params.folder),
        state_(MakeNoise(static_cast<uint64_t>(params.unchanged_tensors) * kChunkBytes, kChunkBytes,
                         3)),
        path_(place_.NewPath("store")),
        store_(Must(Store::Create(path_, WithThreads(params)))) {
    Save(store_.get(), state_, step_);
    Save(store_.get(), state_, ++step_);
    RequireRestores(*store_, step_, state_);
  }

  Sample Once() override {
    place_.Settle();
    const double digest = Seconds([&] { DigestPass(state_, params_.num_threads); });
    const uint64_t before = DiskBytes(path_);
    const double save = Seconds([&] { Save(store_.get(), state_, ++step_); });
    // A merge in the background may have taken more away than the save has added.
    const double added = static_cast<double>(DiskBytes(path_)) - static_cast<double>(before);
    const auto gigabytes = static_cast<double>(state_.bytes()) / 1e9;
    return {save,
            {{"digest_ms", digest * 1e3},
             {"ratio", save / digest},
             {"beyond_digest_ms", (save - digest) * 1e3},
             {"gb_per_s_core", gigabytes / save / params_.num_threads},
             {"bytes_per_tensor", added / static_cast<double>(state_.tensors.size())}}};
  }

 private:
  const Params params_;
  Workplace place_;
  const State state_;
  const fs::path path_;
  const std::unique_ptr<Store> store_;
  uint64_t step_ = 1;
};

}  // namespace

void RegisterSave(const Params& params) {
  const auto raw = [](WriteBack write_back) {
    return [=](const fs::path& path, const State& state) {
      WriteRaw(path, PartsOf(state), write_back);
    };
  };
  Register("save/full_noise", {.times = params.pairs}, [=] {
    return std::make_unique<FullSave>(
        params, MakeNoise(params.full_bytes, params.tensor_bytes, 1),
        std::vector<Baseline>{{"", raw(WriteBack::kAtSync)}, {"early_", raw(WriteBack::kEarly)}});
  });
  Register("save/full_trained", {.times = params.pairs}, [=] {
    return std::make_unique<FullSave>(params, MakeTraining(params),
                                      std::vector<Baseline>{{"", WriteSafetensors}});
  });
  Register("save/one_percent", {.times = params.pairs},
           [=] { return std::make_unique<OnePercent>(params); });
  Register("save/unchanged", {.times = params.pairs},
           [=] { return std::make_unique<Unchanged>(params); });
}

}  // namespace varve::internal::bench
