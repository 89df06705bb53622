// SPDX-License-Identifier: Apache-2.0
#include "store/group/coverage_proof.h"

#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

constexpr int64_t kRows = 8;

// Rank `rank` holds rows [begin, end) of an [8, 3] tensor.
CatalogueShard Rows(const std::string& name, uint32_t rank, int64_t begin, int64_t end) {
  ShardLayout layout = ShardLayout::Whole({kRows, 3});
  layout.axes[0] = {{begin, end - begin}};
  return {{.name = name, .shape = layout.LocalShape(), .layout = Canonical(layout)}, rank};
}

// "a" has two parts, each held twice. "b" is whole on two ranks. "own" is on each rank, without
// layouts.
Catalogue FourRanks() {
  Catalogue catalogue;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const int64_t begin = rank % 2 == 0 ? 0 : 5, end = rank % 2 == 0 ? 5 : kRows;
    catalogue.shards.push_back(Rows("a", rank, begin, end));
    catalogue.shards.back().content = {rank % 2, 1};
    if (rank < 2) catalogue.shards.push_back(Rows("b", rank, 0, kRows));
    catalogue.shards.push_back({{.name = "own", .shape = {2}}, rank, 0, {rank, 2}});
  }
  catalogue.Sort();
  return catalogue;
}

// The shard of this name that the rank holds.
CatalogueShard& Of(Catalogue* catalogue, const std::string& name, uint32_t rank) {
  return *std::find_if(catalogue->shards.begin(), catalogue->shards.end(),
                       [&](const CatalogueShard& s) { return s.name == name && s.rank == rank; });
}

TEST(CoverageProofTest, TheSameLayoutsAreProvenOnce) {
  CoverageProof proof;
  Catalogue catalogue = FourRanks();
  VARVE_EXPECT_OK(proof.Prove(catalogue));
  for (CatalogueShard& shard : catalogue.shards) ++shard.content.hi;  // another step
  VARVE_EXPECT_OK(proof.Prove(catalogue));
  EXPECT_EQ(proof.num_proofs(), 1u);
}

TEST(CoverageProofTest, WhateverChangesInLayoutsIsProvenAgain) {
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

TEST(CoverageProofTest, AGapInTheSecondSaveIsFound) {
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

TEST(CoverageProofTest, AShardThatIsMissingOrThereTwiceIsFound) {
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
  EXPECT_THAT(status,
              FailsWith(StatusCode::kInvalidArgument,
                        "tensor a: its shards hold 21 of the 24 elements of [8, 3]: no rank "
                        "holds [7:8, :]; beside it ranks 1, 3 hold [5:7, :] of [8, 3]\n"));
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument,
                                "tensor b: its shards hold 6 of the 24 elements of [8, 3]: no rank "
                                "holds [2:8, :]; beside it ranks 0, 1 hold [0:2, :] of [8, 3]; "
                                "ranks 2, 3 save nothing of it"));
}

TEST(CoverageProofTest, AHoleIsExpectedOfTheRanksThatHoldItOfATensorCutAlike) {
  Catalogue catalogue;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const int64_t begin = int64_t{2} * rank;
    if (rank != 2) catalogue.shards.push_back(Rows("layer.1.w", rank, begin, begin + 2));
    catalogue.shards.push_back(Rows("layer.0.w", rank, begin, begin + 2));
  }
  catalogue.Sort();
  EXPECT_THAT(CoverageProof().Prove(catalogue),
              FailsWith(StatusCode::kInvalidArgument,
                        "no rank holds [4:6, :]; beside it rank 1 holds [2:4, :] of [8, 3], rank 3 "
                        "holds [6:8, :] of [8, 3]; rank 2 holds this region of tensor layer.0.w, "
                        "which is cut alike"));
}

TEST(CoverageProofTest, AnOverlapNamesThePairOfRanksAndTheRegionAndAHoleBehindItToo) {
  Catalogue catalogue;
  catalogue.shards = {Rows("w", 0, 0, 4), Rows("w", 1, 3, 7), Rows("w", 2, 0, 4)};
  EXPECT_THAT(CoverageProof().Prove(catalogue),
              FailsWith(StatusCode::kInvalidArgument,
                        "tensor w: its shards [0:4, :] of [8, 3] of ranks 0, 2 and [3:7, :] of [8, "
                        "3] of rank 1 overlap in 3 elements and are no replicas: both hold [3:4, "
                        ":]; no rank holds [7:8, :]; beside it rank 1 holds [3:7, :]"));
}

TEST(CoverageProofTest, AllReplicasThatDifferAreTold) {
  CoverageProof proof;
  Catalogue catalogue = FourRanks();
  Of(&catalogue, "a", 3).content.lo ^= 1;
  Of(&catalogue, "b", 1).content.lo ^= 1;
  const Status status = proof.Prove(catalogue);
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, "tensor a: that of rank 1 and"));
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, "tensor b: that of rank 0 and"));
}

TEST(CoverageProofTest, OfVeryManyBrokenTensorsTheNamesAreTold) {
  Catalogue catalogue;
  for (int i = 0; i < 300; ++i) {
    catalogue.shards.push_back(Rows("w" + std::to_string(1000 + i), 0, 0, 4));
  }
  const Status status = CoverageProof().Prove(catalogue);
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, "tensor w1019: its shards hold 12"));
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, "and likewise w1020, w1021, "));
  EXPECT_THAT(status, FailsWith(StatusCode::kInvalidArgument, ", w1219, and 80 tensors more"));
}

TEST(CoverageProofTest, ReplicasAreComparedEveryTime) {
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
              FailsWith(StatusCode::kInvalidArgument,
                        "tensor a: its shards are held by ranks 0, 2, 3 with one, rank 1 without "
                        "a layout"));
  Of(&catalogue, "a", 1) = Of(&catalogue, "a", 3);
  Of(&catalogue, "a", 3).dtype = DType::kBF16;
  EXPECT_THAT(proof.Prove(catalogue), FailsWith(StatusCode::kInvalidArgument, "rank 3 as BF16"));
}

}  // namespace
}  // namespace varve::internal::testing
