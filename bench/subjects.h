// SPDX-License-Identifier: Apache-2.0
//
// One function a subject. It registers the benchmarks of NAME_bench.cc. README.md explains their
// counters.
#pragma once

#include "bench/bench_params.h"
#include "bench/state.h"

namespace varve::internal::bench {

void RegisterSave(const Params& params);
void RegisterRestore(const Params& params);
void RegisterQuery(const Params& params);
void RegisterDrop(const Params& params);
void RegisterDigest(const Params& params);
void RegisterOpen(const Params& params);
void RegisterMemory(const Params& params);

// The training state of the parameters: from their file, else synthetic.
inline State MakeTraining(const Params& params) {
  return params.state_file.empty() ? MakeTrained(params.full_bytes, 1)
                                   : LoadTrained(params.state_file, params.full_bytes);
}

inline CreateOptions WithThreads(const Params& params) {
  CreateOptions options;
  options.store.num_threads = params.num_threads;
  return options;
}

}  // namespace varve::internal::bench
