// SPDX-License-Identifier: Apache-2.0
//
// Loops over all threads whose blocks never depend on how many threads there are.
#pragma once

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstdint>

namespace gpt {

// Calls body(begin, end) for [0, block), [block, 2 * block), ... up to total, in any order and at
// the same time. A sum that stays inside a block has the same bits on any machine load.
template <typename Body>
void ParallelBlocks(int64_t total, int64_t block, const Body& body) {
  tbb::parallel_for(int64_t{0}, (total + block - 1) / block,
                    [&](int64_t i) { body(i * block, std::min(total, (i + 1) * block)); });
}

}  // namespace gpt
