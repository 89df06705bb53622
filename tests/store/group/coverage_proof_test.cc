// SPDX-License-Identifier: Apache-2.0
#include "store/group/coverage_proof.h"

#include "tests/store/store_fixture.h"

namespace varve::testing {
namespace {

constexpr int64_t kRows = 8;

// Rank `rank` holds rows [begin, end) of an [8, 3] tensor.
CatalogueShard Rows(const std::string& name, uint32_t rank, int64_t begin, int64_t end) {
  ShardLayout layout = ShardLayout::Whole({kRows, 3});
  layout.axes[0] = {{begin, end - begin}};
  return {.name = name, .rank = rank, .shape = layout.LocalShape(), .layout = Canonical(layout)};
}

// "a" in two parts, each held twice; "b" whole on two ranks; "own" on each rank, without layouts.
Catalogue FourRanks() {
  Catalogue catalogue;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const int64_t begin = rank % 2 == 0 ? 0 : 5, end = rank % 2 == 0 ? 5 : kRows;
    catalogue.shards.push_back(Rows("a", rank, begin, end));
    catalogue.shards.back().content = {rank % 2, 1};
    if (rank < 2) catalogue.shards.push_back(Rows("b", rank, 0, kRows));
    catalogue.shards.push_back({.name = "own", .rank = rank, .shape = {2}, .content = {rank, 2}});
  }
  catalogue.Sort();
  return catalogue;
}

// The shard of this name that the rank holds.
CatalogueShard& Of(Catalogue* catalogue, const std::string& name, uint32_t rank) {
  return *std::find_if(catalogue->shards.begin(), catalogue->shards.end(),
                       [&](const CatalogueShard& s) { return s.name == name && s.rank == rank; });
}

TEST(CoverageProofTest, Row28_TheSameLayoutsAreProvenOnce) {
  CoverageProof proof;
  Catalogue catalogue = FourRanks();
  VARVE_EXPECT_OK(proof.Prove(catalogue));
  for (CatalogueShard& shard : catalogue.shards) ++shard.content.hi;  // another step
  VARVE_EXPECT_OK(proof.Prove(catalogue));
  EXPECT_EQ(proof.num_proofs(), 1u);
}

TEST(CoverageProofTest, Row28_WhateverChangesInLayoutsIsProvenAgain) {
  CoverageProof proof;
  uint64_t proofs = 0;
  const auto expect_proof = [&](const Catalogue& catalogue) {
    VARVE_EXPECT_OK(proof.Prove(catalogue));
    EXPECT_EQ(proof.num_proofs(), ++proofs);
  };
  Catalogue catalogue = FourRanks();
  expect_proof(catalogue);
  for (uint32_t rank = 0; rank < 4; ++rank) Of(&catalogue, "a", rank).dtype = DType::kBF16;
  expect_proof(catalogue);
  for (CatalogueShard& shard : catalogue.shards) shard.name += "2";
  VARVE_EXPECT_OK(proof.Prove(catalogue));  // names make no difference
  EXPECT_EQ(proof.num_proofs(), proofs);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Of(&catalogue, "b2", rank).layout = ShardLayout::Whole({3, kRows});
  }
  expect_proof(catalogue);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Of(&catalogue, "b2", rank).layout->axes[0].push_back({.length = 1, .is_padding = true});
  }
  expect_proof(catalogue);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Of(&catalogue, "b2", rank).layout->flat = Range{0, 30};
  }
  expect_proof(catalogue);
}

TEST(CoverageProofTest, Row28_AGapInTheSecondSaveIsFound) {
  CoverageProof proof;
  VARVE_ASSERT_OK(proof.Prove(FourRanks()));
  Catalogue gap = FourRanks();
  for (const uint32_t rank : {1, 3}) Of(&gap, "a", rank) = Rows("a", rank, 5, kRows - 1);
  // A proof that failed is not remembered: the second time fails alike.
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(proof.Prove(gap), FailsWith(StatusCode::kInvalidArgument,
                                            "tensor a: its shards hold 21 of the 24 elements"));
  }
  EXPECT_EQ(proof.num_proofs(), 3u);
  VARVE_EXPECT_OK(proof.Prove(FourRanks()));  // still known
  EXPECT_EQ(proof.num_proofs(), 3u);
}

TEST(CoverageProofTest, Row28_AShardThatIsMissingOrThereTwiceIsFound) {
  CoverageProof proof;
  VARVE_ASSERT_OK(proof.Prove(FourRanks()));
  Catalogue missing = FourRanks();
  std::erase_if(missing.shards,
                [](const CatalogueShard& s) { return s.name == "a" && s.rank % 2; });
  EXPECT_THAT(proof.Prove(missing), FailsWith(StatusCode::kInvalidArgument, "hold 15 of the 24"));
  Catalogue twice = FourRanks();
  Of(&twice, "a", 2) = Rows("a", 2, 0, 6);
  EXPECT_THAT(proof.Prove(twice),
              FailsWith(StatusCode::kInvalidArgument, "overlap in 15 elements"));
}

TEST(CoverageProofTest, AllFaultsAreToldWithTheRanks) {
  CoverageProof proof;
  Catalogue catalogue = FourRanks();
  for (const uint32_t rank : {1, 3}) Of(&catalogue, "a", rank) = Rows("a", rank, 5, kRows - 1);
  for (const uint32_t rank : {0, 1}) Of(&catalogue, "b", rank) = Rows("b", rank, 0, 2);
  const Status status = proof.Prove(catalogue);
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument,
                                "tensor a: its shards hold 21 of the 24 elements"));
  EXPECT_THAT(status,
              FailsWith(StatusCode::kInvalidArgument,
                        "rank 0 holds [0:5, :] of [8, 3], rank 1 holds [5:7, :] of [8, 3]"));
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, "tensor b: its shards hold 6 of"));
}

TEST(CoverageProofTest, Row15_ReplicasAreComparedEveryTime) {
  CoverageProof proof;
  Catalogue catalogue = FourRanks();
  VARVE_ASSERT_OK(proof.Prove(catalogue));
  Of(&catalogue, "a", 3).content.lo ^= 1;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(proof.Prove(catalogue),
                FailsWith(StatusCode::kInvalidArgument,
                          "tensor a: that of rank 1 and that of rank 3 are replicas, [5:8, :] of "
                          "[8, 3], but differ"));
  }
  EXPECT_EQ(proof.num_proofs(), 1u);
}

TEST(CoverageProofTest, ShardsWithAndWithoutLayoutMakeNoTensor) {
  CoverageProof proof;
  Catalogue catalogue = FourRanks();
  Of(&catalogue, "a", 1).layout.reset();
  EXPECT_THAT(proof.Prove(catalogue),
              FailsWith(StatusCode::kInvalidArgument, "of rank 0 and that of rank 1"));
}

}  // namespace
}  // namespace varve::testing
