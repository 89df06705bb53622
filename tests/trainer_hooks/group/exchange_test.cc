// SPDX-License-Identifier: Apache-2.0
//
// Ranks that load together read each chunk once, and get what they want whatever their layouts.
#include "trainer_hooks/group/exchange.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "store/shards/overlap.h"
#include "tests/support/bytes_read.h"
#include "tests/support/shard_reference.h"
#include "tests/support/sizes.h"
#include "tests/trainer_hooks/holding.h"
#include "tests/trainer_hooks/ranks_fixture.h"
#include "trainer_hooks/group/exchange_plan.h"
#include "varve/layouts.h"

namespace varve::internal::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Lists = std::vector<std::vector<HeldTensor>>;

HeldTensor Want(const ShardLayout& layout) { return Holding(Canonical(layout), {.name = "w"}); }

TensorInfo Stored(const ShardLayout& layout, uint32_t shard = 0) {
  return {{.name = "w", .shape = layout.LocalShape(), .layout = layout}, shard};
}

ShardLayout Columns(const std::vector<int64_t>& shape, int64_t ranks, int64_t rank) {
  return SplitEvenly(ShardLayout::Whole(shape), 1, {rank, ranks}).value();
}

// Bytes that each rank reads.
std::vector<uint64_t> ReadBytes(const ExchangePlan& plan, size_t ranks) {
  std::vector<uint64_t> bytes(ranks);
  for (const auto& round : plan.rounds) {
    for (const ExchangeItem& item : round) {
      bytes[item.reader] += 4 * static_cast<uint64_t>(item.layout.NumLocal());
    }
  }
  return bytes;
}

TEST(ExchangePlanTest, WhatAllWantIsReadOnceAndSpread) {
  const ShardLayout whole = ShardLayout::Whole({1024, 2560});  // 10 chunks
  const std::vector<TensorInfo> stored = {Stored(whole)};
  Lists wanted;
  for (int64_t rank = 0; rank < 5; ++rank) wanted.push_back({Want(Columns({1024, 2560}, 5, rank))});
  const ExchangePlan plan = PlanExchange(stored, wanted, 64 * kMiB);
  uint64_t sum = 0;
  for (const uint64_t bytes : ReadBytes(plan, 5)) sum += bytes;
  EXPECT_EQ(sum, 10 * kMiB);
  const Lists same(2, {Want(whole)});
  EXPECT_THAT(ReadBytes(PlanExchange(stored, same, 4 * kMiB), 2), Each(5 * kMiB));
}

TEST(ExchangePlanTest, WhatOneRankWantsItReadsAsEver) {
  const ShardLayout whole = ShardLayout::Whole({1024, 1024});  // rows of 4 KiB, 4 chunks
  const std::vector<TensorInfo> stored = {Stored(whole)};
  Lists wanted;
  for (int64_t rank = 0; rank < 4; ++rank) {
    wanted.push_back({Want(SplitEvenly(whole, 0, {rank, 4}).value())});
  }
  const ExchangePlan plan = PlanExchange(stored, wanted, 64 * kMiB);
  EXPECT_TRUE(plan.rounds.empty());
  for (const auto& is_exchanged : plan.is_exchanged) EXPECT_FALSE(is_exchanged[0]);
}

TEST(ExchangePlanTest, OfReplicasOneIsReadAndNothingThatNobodyWants) {
  const ShardLayout whole = ShardLayout::Whole({16, 262144});  // a row is a chunk
  const ShardLayout upper = SplitEvenly(whole, 0, {0, 2}).value();
  const ShardLayout lower = SplitEvenly(whole, 0, {1, 2}).value();
  const std::vector<TensorInfo> stored = {Stored(upper, 0), Stored(lower, 1), Stored(upper, 2)};
  const Lists wanted(3, {Want(SplitEvenly(whole, 0, {1, 4}).value())});  // rows 4 to 8
  const ExchangePlan plan = PlanExchange(stored, wanted, 64 * kMiB);
  std::set<uint32_t> shards;
  uint64_t sum = 0;
  for (const uint64_t bytes : ReadBytes(plan, 3)) sum += bytes;
  for (const ExchangeItem& item : plan.rounds[0]) shards.insert(item.shard);
  EXPECT_EQ(sum, 4 * kMiB);
  EXPECT_THAT(shards, ::testing::ElementsAre(0u));
}

TEST(ExchangePlanTest, NoRankHoldsMoreThanTheBudgetOfARound) {
  const ShardLayout whole = ShardLayout::Whole({64, 262144});
  const std::vector<TensorInfo> stored = {Stored(whole)};
  const Lists wanted(4, {Want(whole)});
  const ExchangePlan plan = PlanExchange(stored, wanted, 8 * kMiB);
  for (const auto& round : plan.rounds) {
    uint64_t bytes = 0;  // that each rank receives
    for (const ExchangeItem& item : round)
      bytes += 4 * static_cast<uint64_t>(item.layout.NumLocal());
    EXPECT_LE(bytes, 8 * kMiB);
  }
  EXPECT_GE(plan.rounds.size(), 8u);
}

class ExchangeTest : public RanksTest {
 protected:
  static constexpr int64_t kSize = 2048;  // 16 MiB

  static const std::vector<std::byte>& Global() {
    static const auto* const bytes =
        new std::vector<std::byte>(NormalTensor("w", {kSize, kSize}, 1).bytes);
    return *bytes;
  }
  static TestTrainer RankWith(const ShardLayout& layout) {
    TestTrainer trainer;
    trainer.Add({.name = "w", .shape = layout.LocalShape(), .layout = layout},
                CutShard(Global(), 4, layout, {}));
    return trainer;
  }
  static ShardLayout Part(size_t axis, int ranks, int rank) {
    return SplitEvenly(ShardLayout::Whole({kSize, kSize}), axis, {rank, ranks}).value();
  }

  void SaveRows(int ranks) {
    Run(ranks,
        [&](int rank, AsyncCheckpointer* checkpointer) {
          const TestTrainer trainer = RankWith(Part(0, ranks, rank));
          VARVE_ASSERT_OK(checkpointer->Save(1, trainer.state).status());
          VARVE_ASSERT_OK(checkpointer->Wait());
        },
        {.store = {.compression = Compression::kNone}});
  }

  // Loads on all ranks, each its own layout, and gives what that read.
  uint64_t LoadAll(int ranks, bool exchange, const std::function<ShardLayout(int)>& layout_of) {
    std::vector<TestTrainer> expected;
    for (int rank = 0; rank < ranks; ++rank) expected.push_back(RankWith(layout_of(rank)));
    std::vector<TestTrainer> into;
    for (int rank = 0; rank < ranks; ++rank) {
      into.push_back(RankWith(layout_of(rank)));
      std::ranges::fill(into.back().memory[0], std::byte{0x55});
    }
    const uint64_t before = BytesRead();
    Run(ranks, [&](int rank, AsyncCheckpointer* checkpointer) {
      const auto i = static_cast<size_t>(rank);
      const auto report = checkpointer->Restore("1", {.exchange = exchange}, &into[i].state);
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_EQ(into[i].Bytes("w"), expected[i].Bytes("w")) << "rank " << rank;
    });
    return BytesRead() - before;
  }
};

TEST_F(ExchangeTest, ColumnsAreReadOnceOverAllRanks) {
  SaveRows(2);
  const auto columns = [](int rank) { return Part(1, 4, rank); };
  EXPECT_GT(LoadAll(4, false, columns), 60 * kMiB);
  EXPECT_LT(static_cast<double>(LoadAll(4, true, columns)), 1.1 * 16 * kMiB);
}

TEST_F(ExchangeTest, ReplicasAreReadOnceOverAllRanks) {
  SaveRows(2);
  const auto whole = [](int) { return ShardLayout::Whole({kSize, kSize}); };
  EXPECT_LT(static_cast<double>(LoadAll(3, true, whole)), 1.1 * 16 * kMiB);
  const auto rows = [](int rank) { return Part(0, 2, rank / 2); };
  EXPECT_LT(static_cast<double>(LoadAll(4, true, rows)), 1.1 * 16 * kMiB);
}

TEST_F(ExchangeTest, LayoutsMayBeMixedPaddedAndFlat) {
  SaveRows(2);
  LoadAll(4, true, [](int rank) {
    const ShardLayout whole = ShardLayout::Whole({kSize, kSize});
    switch (rank) {
      case 0:
        return SplitPadded(whole, 0, kSize + 1, {2, 3}).value();
      case 1:
        return SliceFlat(Part(1, 2, 1), {6, 7}).value();
      case 2:
        return SplitFused(whole, 1, std::vector<int64_t>{1024, 1024}, {1, 2}).value();
      default:
        return SplitChunks(whole, 0, {6, 7}).value();
    }
  });
}

TEST_F(ExchangeTest, OneRankIsEnough) {
  SaveRows(2);
  LoadAll(1, true, [](int) { return Part(1, 2, 1); });
}

TEST_F(ExchangeTest, WhatIsConvertedOrStridedComesAsEver) {
  SaveRows(2);
  std::vector<float> values(kSize * kSize);
  std::memcpy(values.data(), Global().data(), Global().size());
  const std::vector<double> converted(values.begin(), values.end());
  std::vector<float> transposed(values.size());
  for (size_t row = 0; row < kSize; ++row) {
    for (size_t column = 0; column < kSize; ++column) {
      transposed[column * kSize + row] = values[row * kSize + column];
    }
  }
  Run(2, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer wide;
    wide.Add({.name = "w", .dtype = DType::kF64, .shape = {kSize, kSize}}, 3);
    VARVE_ASSERT_OK(
        checkpointer->Restore("1", {.convert_dtype = true, .exchange = true}, &wide.state)
            .status());
    EXPECT_TRUE(wide.memory[0] == BytesOf(converted)) << "rank " << rank;
    TestTrainer strided;
    strided.Add({{.name = "w", .shape = {kSize, kSize}}, nullptr, kHost, {1, kSize}}, 3);
    VARVE_ASSERT_OK(checkpointer->Restore("1", {.exchange = true}, &strided.state).status());
    EXPECT_TRUE(strided.memory[0] == BytesOf(transposed)) << "rank " << rank;
  });
}

TEST_F(ExchangeTest, WhatDoesNotFitOneRankFailsOnAll) {
  SaveRows(2);
  Run(3, [&](int rank, AsyncCheckpointer* checkpointer) {
    TestTrainer into = RankWith(Part(1, 4, rank));
    if (rank == 1) into.Add({.name = "other", .shape = {3}}, 1);
    EXPECT_THAT(checkpointer->Restore("1", {.exchange = true}, &into.state),
                FailsWith(StatusCode::kInvalidArgument, "tensor other: missing"));
  });
}

TEST_F(ExchangeTest, DamageThatOneRankReadsFailsAll) {
  SaveRows(2);
  expect_damage_ = true;
  std::filesystem::path largest;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root())) {
    if (!entry.is_regular_file()) continue;
    if (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)) {
      largest = entry.path();
    }
  }
  std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(largest) / 2));
  file.write("damage", 6);
  file.close();
  Run(3, [&](int, AsyncCheckpointer* checkpointer) {
    TestTrainer into = RankWith(ShardLayout::Whole({kSize, kSize}));
    const auto report = checkpointer->Restore("1", {.exchange = true}, &into.state);
    EXPECT_THAT(report, FailsWith(StatusCode::kCorruption, "tensor w"));
    EXPECT_THAT(report.status().message(), ::testing::StartsWith("rank "));
    EXPECT_THAT(report.status().message(), ::testing::Not(HasSubstr("rank 0: rank ")));
  });
}

}  // namespace
}  // namespace varve::internal::testing
