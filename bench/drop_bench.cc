// SPDX-License-Identifier: Apache-2.0
//
// Dropping one step of few and one of many, and dropping nearly all steps one by one.
#include <algorithm>
#include <numeric>
#include <random>

#include "bench/measure.h"
#include "bench/subjects.h"
#include "bench/workplace.h"

namespace varve::internal::bench {
namespace {

namespace fs = std::filesystem;

// Each step has `drop_step_bytes` of its own, and as many bytes that all steps share.
class Stepped {
 public:
  Stepped(const Params& params, Workplace* place, int num_steps)
      : path_(place->NewPath("store")),
        store_(Must(Store::Create(path_, WithThreads(params)))),
        state_(MakeNoise(2 * params.drop_step_bytes, kChunkBytes, 7)) {
    for (int i = 0; i < num_steps; ++i) SaveNext();
    RequireRestores(*store_, next_ - 1, state_);
  }

  void SaveNext() {
    for (size_t t = 0; t < state_.tensors.size() / 2; ++t) {
      FillNoise(Mix(next_ + 8, t), state_.tensors[t].data);
    }
    Save(store_.get(), state_, next_++);
  }

  DropReport Drop(uint64_t step) {
    const CheckpointId id{"main", step};
    return Must(store_->Drop({&id, 1}));
  }

  Store* store() const { return store_.get(); }

 private:
  const fs::path path_;
  const std::unique_ptr<Store> store_;
  State state_;
  uint64_t next_ = 0;
};

class DropOne : public Measure {
 public:
  explicit DropOne(const Params& params)
      : params_(params),
        place_(params.folder),
        few_(params, &place_, params.few_steps),
        many_(params, &place_, params.many_steps) {}

  Sample Once() override {
    // Drops the oldest step of the small store, whose files hold one step each, and a step from the
    // middle of the large one, whose files hold many. Each store then gets a new step.
    place_.Settle();
    DropReport report;
    const double few = Seconds([&] { report = few_.Drop(done_); });
    few_.SaveNext();
    const double many =
        Seconds([&] { many_.Drop(static_cast<uint64_t>(params_.many_steps) / 2 + done_); });
    many_.SaveNext();
    ++done_;
    const ReclaimReport& reclaim = report.reclaim;
    const double back = static_cast<double>(reclaim.disk_bytes_before) -
                        static_cast<double>(reclaim.disk_bytes_after);
    return {many,
            {{"few_ms", few * 1e3},
             {"ratio", many / few},
             {"back_share", back / static_cast<double>(params_.drop_step_bytes)}}};
  }

 private:
  const Params params_;
  Workplace place_;
  Stepped few_;
  Stepped many_;
  uint64_t done_ = 0;
};

// Drops all steps but ten, one by one in a random order. Measures the most garbage at any time, and
// how much was rewritten to remove garbage.
class DropMost : public Measure {
 public:
  explicit DropMost(const Params& params)
      : place_(params.folder), steps_(params, &place_, params.garbage_steps) {
    order_.resize(static_cast<size_t>(params.garbage_steps));
    std::iota(order_.begin(), order_.end(), uint64_t{0});
    std::shuffle(order_.begin(), order_.end(), std::mt19937_64(9));
    order_.resize(order_.size() - 10);
  }

  Sample Once() override {
    double garbage_share = 0;
    double slowest = 0;
    double all = 0;
    uint64_t freed = 0;
    uint64_t rewritten = 0;
    for (const uint64_t step : order_) {
      DropReport report;
      const double seconds = Seconds([&] { report = steps_.Drop(step); });
      all += seconds;
      slowest = std::max(slowest, seconds);
      freed += report.reclaim.freed_bytes;
      rewritten += report.reclaim.rewritten_bytes;
      const StoreStats stats = Must(steps_.store()->Stats());
      garbage_share = std::max(garbage_share, static_cast<double>(stats.pending_bytes) /
                                                  static_cast<double>(stats.stored_bytes));
    }
    return {all,
            {{"garbage_share", garbage_share},
             {"mean_ms", all / static_cast<double>(order_.size()) * 1e3},
             {"slowest_ms", slowest * 1e3},
             {"rewritten_share",
              static_cast<double>(rewritten) / static_cast<double>(std::max<uint64_t>(freed, 1))}}};
  }

 private:
  Workplace place_;
  Stepped steps_;
  std::vector<uint64_t> order_;
};

}  // namespace

void RegisterDrop(const Params& params) {
  Register("drop/one", {.times = params.pairs}, [=] { return std::make_unique<DropOne>(params); });
  Register("drop/most", {.times = 1, .warm_up = false},
           [=] { return std::make_unique<DropMost>(params); });
}

}  // namespace varve::internal::bench
