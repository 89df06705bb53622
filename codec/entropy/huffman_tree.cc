// SPDX-License-Identifier: Apache-2.0
// Computes the lengths of codes from the frequency of symbols.
#include <algorithm>
#include <array>
#include <numeric>

#include "codec/entropy/huffman_code.h"

namespace varve::internal {

namespace {

// The symbols that occur, the rarest first.
struct Leaf {
  uint32_t count;
  uint32_t symbol;
};
struct Leaves {
  std::array<Leaf, 257> at;  // one more than there can be, to write to
  size_t size = 0;
};

// Sorts by the bytes of the counts, the lowest byte first. It compares nothing, because the
// processor could not predict the outcome.
void SortLeaves(Leaves* leaves, uint32_t most) {
  Leaves other;
  for (unsigned shift = 0; most >> shift != 0; shift += 8) {
    std::array<uint32_t, 257> begin{};
    for (size_t i = 0; i < leaves->size; ++i) ++begin[((leaves->at[i].count >> shift) & 0xFF) + 1];
    for (size_t v = 1; v < begin.size(); ++v) begin[v] += begin[v - 1];
    for (size_t i = 0; i < leaves->size; ++i) {
      const Leaf leaf = leaves->at[i];
      other.at[begin[(leaf.count >> shift) & 0xFF]++] = leaf;
    }
    std::copy_n(other.at.begin(), leaves->size, leaves->at.begin());
  }
}

Leaves SortedLeaves(const ByteCounts& counts) {
  Leaves leaves;
  uint32_t most = 0;
  for (uint32_t symbol = 0; symbol < counts.size(); ++symbol) {
    leaves.at[leaves.size] = {.count = counts[symbol], .symbol = symbol};
    leaves.size += counts[symbol] > 0;
    most = std::max(most, counts[symbol]);
  }
  SortLeaves(&leaves, most);
  return leaves;
}

using LengthCounts = std::array<uint32_t, 256>;  // by length: how many codes have it

// Joins the two rarest nodes until one is left. Joined nodes come in order as well, so the rarest
// node is at the front of one of two queues.
LengthCounts TreeLengths(const Leaves& leaves) {
  std::array<uint32_t, 255> weight;
  std::array<uint32_t, 511> parent;  // leaves first, then joined nodes
  const size_t n = leaves.size;
  size_t leaf = 0;
  size_t node = 0;
  for (size_t made = 0; made + 1 < n; ++made) {
    weight[made] = 0;
    for (int side = 0; side < 2; ++side) {
      const bool take_leaf = leaf < n && (node >= made || leaves.at[leaf].count <= weight[node]);
      weight[made] += take_leaf ? leaves.at[leaf].count : weight[node];
      parent[take_leaf ? leaf++ : n + node++] = static_cast<uint32_t>(n + made);
    }
  }
  std::array<uint32_t, 511> depth;
  LengthCounts lengths{};
  depth[2 * n - 2] = 0;
  for (size_t i = 2 * n - 2; i-- > 0;) {
    depth[i] = depth[parent[i]] + 1;
    if (i < n) ++lengths[depth[i]];
  }
  return lengths;
}

bool IsTooLong(const LengthCounts& lengths) {
  return std::any_of(lengths.begin() + kMaxCodeBits + 1, lengths.end(),
                     [](uint32_t count) { return count > 0; });
}

}  // namespace

HuffmanCode MakeHuffmanCode(const ByteCounts& counts) {
  Leaves leaves = SortedLeaves(counts);
  LengthCounts lengths = TreeLengths(leaves);
  // While a code is too long, rare symbols count as more frequent.
  const uint32_t total = std::accumulate(counts.begin(), counts.end(), uint32_t{0});
  for (uint32_t least = (3 * total >> (kMaxCodeBits + 2)) + 1; IsTooLong(lengths);
       least += least / 8 + 1) {
    for (size_t i = 0; i < leaves.size && leaves.at[i].count < least; ++i) {
      leaves.at[i].count = least;
    }
    lengths = TreeLengths(leaves);
  }
  HuffmanCode code;
  size_t bits = kMaxCodeBits;
  for (size_t i = 0; i < leaves.size; ++i) {
    while (lengths[bits] == 0) --bits;
    --lengths[bits];
    code.bits[leaves.at[i].symbol] = static_cast<uint8_t>(bits);
  }
  return code;
}

}  // namespace varve::internal
