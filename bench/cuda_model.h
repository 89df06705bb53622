// SPDX-License-Identifier: Apache-2.0
//
// The model of what a save of tensors on a GPU costs, as docs/gpu.md has it. Read passes and pinned
// copies are those of the run. All times are in seconds. Functions are stateless.
#pragma once

#include <algorithm>
#include <cstdint>

namespace varve::internal::bench {

inline constexpr double kHostSeconds = 0.5e-3;    // before the launch, and after the digests
inline constexpr double kLaunchSeconds = 6e-6;    // counters, kernel, and digests to the host
inline constexpr double kShareOfReadPass = 0.95;  // that the digest kernel reaches

struct ModelOfState {
  double bytes = 0;
  double copy = 0;     // a copy of everything to pinned memory
  double staging = 0;  // bytes on the device
};

inline double PredictDigests(double read_pass) {
  return read_pass / kShareOfReadPass + kLaunchSeconds;
}

// The stall of Save when a share of the chunks changes each time, and the same chunks as before.
inline double PredictSave(const ModelOfState& state, double share, double read_pass) {
  const double changed = share * state.bytes;
  const double staged = std::min(changed, state.staging);
  return kHostSeconds + PredictDigests(read_pass) + staged / state.bytes * read_pass +
         (changed - staged) / state.bytes * state.copy;
}

// The stall of two phases, when the step is longer than the copies.
inline double PredictTwoPhases() { return kHostSeconds; }

}  // namespace varve::internal::bench
