// SPDX-License-Identifier: Apache-2.0
//
// Ranks over NCCL that are threads, each with a device of its own.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "varve/nccl_ranks.h"

namespace varve::internal::testing {

// Calls `run` on all ranks with what NcclRanks returns for the options. It ignores `device` in
// them.
inline void RunNcclRanks(
    int size, NcclOptions options,
    const std::function<void(int rank, Result<std::unique_ptr<RankGroup>>)>& run) {
  std::vector<std::thread> threads;
  for (auto& host : ThreadRanks(size, options.timeout)) {
    threads.emplace_back([&run, options, host = std::move(host)]() mutable {
      const int rank = options.device = host->rank();
      auto group = NcclRanks(host.get(), options);
      host.reset();
      run(rank, std::move(group));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace varve::internal::testing
