// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/cut.h"

#include <gtest/gtest.h>

namespace varve {
namespace {

// The pieces follow each other, are small enough, and each box is the run that it says.
void ExpectCut(const std::vector<int64_t>& shape, int64_t max_elements, size_t num_pieces) {
  const std::vector<Piece> pieces = CutIntoPieces(shape, max_elements);
  EXPECT_EQ(pieces.size(), num_pieces);
  int64_t next = 0;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.first, next);
    EXPECT_LE(piece.count, max_elements);
    ASSERT_EQ(piece.box.size(), shape.size());
    int64_t first = 0, volume = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
      first = first * shape[i] + piece.box[i].begin;
      volume *= piece.box[i].end - piece.box[i].begin;
    }
    EXPECT_EQ(first, piece.first);
    EXPECT_EQ(volume, piece.count);
    next += piece.count;
  }
  EXPECT_EQ(next, NumElements(shape).value());
}

TEST(CutTest, CutsAlongTheFirstAxisThatIsFineEnough) {
  ExpectCut({}, 1, 1);
  ExpectCut({7}, 7, 1);
  ExpectCut({7}, 3, 3);
  ExpectCut({7}, 1, 7);
  ExpectCut({4, 6}, 24, 1);
  ExpectCut({4, 6}, 23, 2);
  ExpectCut({4, 6}, 6, 4);
  ExpectCut({4, 6}, 5, 8);
  ExpectCut({1, 1, 100}, 40, 3);
  ExpectCut({2, 3, 4, 5}, 7, 24);
  ExpectCut({2, 3, 4, 5}, 20, 6);
}

TEST(CutTest, NothingIsCutIntoNothing) {
  ExpectCut({0}, 5, 0);
  ExpectCut({3, 0, 2}, 5, 0);
}

}  // namespace
}  // namespace varve
