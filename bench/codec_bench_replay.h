// SPDX-License-Identifier: Apache-2.0
//
// The whole state of a step, predicted from the step before it (codec/predict/adam_replay.h). The
// store does not use that yet, so this puts frames together as a store would. One thread.
#pragma once

#include "bench/codec_bench_data.h"
#include "codec/frame.h"

namespace varve::internal::bench {

// True when the files are consecutive steps, and the newer one says how its step was made: lr,
// beta1, beta2, eps, weight_decay, step, clip_factor. MeasureReplay ends the program if a tensor is
// not one of the four of a parameter.
bool MayReplay(const File& before, const File& after);

// All bytes that a store would need, with the recipe of each chunk. The first moment is a scaled
// delta, or the gradient if that is BF16. What is predicted exactly takes no bytes, and so does a
// model that is the rounded copy of its master.
struct Replayed {
  Measured measured;
  // The shares of elements that are predicted exactly. 0 for the moment without a BF16 gradient.
  double moment = 0, square = 0, weight = 0;
};
Replayed MeasureReplay(const File& before, const File& after, Entropy entropy);

}  // namespace varve::internal::bench
