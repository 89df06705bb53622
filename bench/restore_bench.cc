// SPDX-License-Identifier: Apache-2.0
//
// Restores a whole step into memory. The baseline is preads of as many bytes by as many threads.
#include "bench/baselines.h"
#include "bench/measure.h"
#include "bench/subjects.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

enum class Cache { kWarm, kCold };

class RestoreAll : public Measure {
 public:
  // With `num_steps` above one, a chain of deltas is restored.
  RestoreAll(const Params& params, State state, Cache cache, uint64_t num_steps)
      : params_(params),
        place_(params.folder),
        state_(std::move(state)),
        cache_(cache),
        step_(num_steps),
        path_(place_.NewPath("store")),
        raw_path_(place_.NewPath("raw")) {
    {
      const auto store = Must(Store::Create(path_, WithThreads(params)));
      for (uint64_t step = 1; step <= num_steps; ++step) {
        if (step > 1) Drift(&state_, step);
        stored_bytes_ = Save(store.get(), state_, step).stored_bytes;
      }
      RequireRestores(*store, step_, state_);
    }
    WriteRaw(raw_path_, PartsOf(state_), WriteBack::kEarly);
    raw_ = std::make_unique<RawReader>(raw_path_);
    store_ = Must(Store::Open(path_, WithThreads(params).store));
    out_ = state_.EmptyCopy();
    Restore(*store_, step_, &out_);  // what is read once for all, as the indexes of table files
    place_.Settle();
  }

  Sample Once() override {
    SetCache(raw_path_);
    const double read = Seconds([&] { raw_->Read(&out_, params_.num_threads); });
    SetCache(path_);
    const double restore = Seconds([&] { Restore(*store_, step_, &out_); });
    const auto bytes = static_cast<double>(state_.bytes());
    return {restore,
            {{"pread_ms", read * 1e3},
             {"ratio", restore / read},
             {"gb_per_s", bytes / restore / 1e9},
             {"stored_share", static_cast<double>(stored_bytes_) / bytes}}};
  }

 private:
  void SetCache(const std::filesystem::path& path) const {
    if (cache_ == Cache::kCold) DropFromCache(path);
  }

  const Params params_;
  Workplace place_;
  State state_;
  State out_;
  const Cache cache_;
  const uint64_t step_;
  const std::filesystem::path path_;
  const std::filesystem::path raw_path_;
  uint64_t stored_bytes_ = 0;
  std::unique_ptr<RawReader> raw_;
  std::unique_ptr<Store> store_;
};

}  // namespace

void RegisterRestore(const Params& params) {
  const auto noise = [params] { return MakeNoise(params.full_bytes, params.tensor_bytes, 4); };
  const auto trained = [params] { return MakeTraining(params); };
  Register("restore/raw_warm", {.times = params.pairs},
           [=] { return std::make_unique<RestoreAll>(params, noise(), Cache::kWarm, 1); });
  Register("restore/raw_cold", {.times = params.pairs},
           [=] { return std::make_unique<RestoreAll>(params, noise(), Cache::kCold, 1); });
  Register("restore/trained_warm", {.times = params.pairs},
           [=] { return std::make_unique<RestoreAll>(params, trained(), Cache::kWarm, 1); });
  Register("restore/delta_warm", {.times = params.pairs},
           [=] { return std::make_unique<RestoreAll>(params, trained(), Cache::kWarm, 2); });
}

}  // namespace varve::internal::bench
