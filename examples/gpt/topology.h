// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a training share the work, in the words and the order of Megatron. Tensor
// parallel ranks are neighbours, then come data parallel ones, then the stages of the pipeline.
//
// Thread rule: plain values.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gpt {

struct Topology {
  int tp = 1;         // ranks that share each layer
  int pp = 1;         // stages, each of consecutive layers
  int dp = 1;         // copies of the model, each with its own samples
  bool zero = false;  // the copies share the optimizer's state: each has a slice

  int size() const { return tp * pp * dp; }
};

// The position of one rank. By default it is the only one.
struct Position {
  Topology topology;
  int tp_rank = 0, pp_rank = 0, dp_rank = 0;

  static Position Of(const Topology& topology, int rank) {
    return {.topology = topology,
            .tp_rank = rank % topology.tp,
            .pp_rank = rank / (topology.tp * topology.dp),
            .dp_rank = rank / topology.tp % topology.dp};
  }
  bool is_first_stage() const { return pp_rank == 0; }
  bool is_last_stage() const { return pp_rank == topology.pp - 1; }
};

// From `begin` to just before `end`.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Returns what both have in common. It is empty when they do not meet.
inline Range Intersect(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Returns part number `i` of `num` parts of [0, size). Their sizes differ by at most 1.
inline Range PartOf(int64_t size, int i, int num) { return {size * i / num, size * (i + 1) / num}; }

}  // namespace gpt
