// SPDX-License-Identifier: Apache-2.0
//
// Opening a store of many steps, for reading and for writing: time and descriptors.
#include "bench/measure.h"
#include "bench/subjects.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTensorBytes = 16 << 10;

double NumDescriptors() {
  const fs::directory_iterator all("/proc/self/fd");
  return static_cast<double>(std::distance(begin(all), end(all)));
}

class OpenMany : public Measure {
 public:
  explicit OpenMany(const Params& params)
      : params_(params),
        place_(params.folder),
        path_(place_.NewPath("store")),
        num_steps_(static_cast<uint64_t>(params.open_steps)) {
    // Two of the four tensors change at each step.
    State state = MakeNoise(4 * kTensorBytes, kTensorBytes, 11);
    const auto store = Must(Store::Create(path_, WithThreads(params)));
    for (uint64_t step = 0; step < num_steps_; ++step) {
      FillNoise(Mix(12, step), state.tensors[0].data);
      FillNoise(Mix(13, step), state.tensors[1].data);
      Save(store.get(), state, step);
    }
    RequireRestores(*store, num_steps_ - 1, state);
  }

  Sample Once() override {
    place_.Settle();
    std::unique_ptr<Store> store;
    const double before = NumDescriptors();
    const double reading =
        Seconds([&] { store = Must(Store::OpenForReading(path_, WithThreads(params_).store)); });
    const double reading_descriptors = NumDescriptors() - before;
    RequireLatest(*store);
    store.reset();
    const double writing =
        Seconds([&] { store = Must(Store::Open(path_, WithThreads(params_).store)); });
    const double writing_descriptors = NumDescriptors() - before;
    RequireLatest(*store);
    store.reset();
    const double most = std::max(reading_descriptors, writing_descriptors);
    const auto disk_bytes = static_cast<double>(DiskBytes(path_));
    return {std::max(reading, writing),
            {{"reading_ms", reading * 1e3},
             {"writing_ms", writing * 1e3},
             {"slower_ms", std::max(reading, writing) * 1e3},
             {"descriptors", most},
             {"allowed_descriptors", disk_bytes / static_cast<double>(128 * kMiB) + 300},
             {"disk_mib", disk_bytes / static_cast<double>(kMiB)}}};
  }

 private:
  void RequireLatest(const Store& store) const {
    if (Must(store.LatestStep("main")) != num_steps_ - 1) Fail("the newest step is not there");
  }

  const Params params_;
  Workplace place_;
  const fs::path path_;
  const uint64_t num_steps_;
};

}  // namespace

void RegisterOpen(const Params& params) {
  Register("open/many_steps", {.times = params.pairs},
           [=] { return std::make_unique<OpenMany>(params); });
}

}  // namespace varve::internal::bench
