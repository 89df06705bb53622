// SPDX-License-Identifier: Apache-2.0
//
// The digest pass that starts every save, compared with memcpy of the same bytes.
#include "bench/baselines.h"
#include "bench/measure.h"
#include "bench/subjects.h"

namespace varve::internal::bench {
namespace {

class Digest : public Measure {
 public:
  explicit Digest(const Params& params)
      : num_threads_(params.num_threads),
        state_(MakeNoise(params.full_bytes, params.tensor_bytes, 10)),
        copy_(state_.EmptyCopy()) {}

  Sample Once() override {
    const double copy = Seconds([&] { CopyPass(state_, &copy_, 1); });
    const double one = Seconds([&] { DigestPass(state_, 1); });
    const double all = Seconds([&] { DigestPass(state_, num_threads_); });
    const auto gigabytes = static_cast<double>(state_.bytes()) / 1e9;
    return {one,
            {{"gb_per_s", gigabytes / one},
             {"all_threads_gb_per_s", gigabytes / all},
             {"memcpy_gb_per_s", gigabytes / copy},
             {"ratio", one / copy}}};
  }

 private:
  const int num_threads_;
  const State state_;
  State copy_;
};

}  // namespace

void RegisterDigest(const Params& params) {
  Register("digest/pass", {.times = params.pairs},
           [=] { return std::make_unique<Digest>(params); });
}

}  // namespace varve::internal::bench
