// SPDX-License-Identifier: Apache-2.0
//
// What is read from a store when tensors on devices are restored. Each chunk is read once over all
// ranks that load together, whatever else each of them has.
#include <thread>

#include "tests/cuda/load_ranks_fixture.h"
#include "tests/support/bytes_read.h"
#include "tests/support/forwarding_ranks.h"
#include "tests/support/shard_reference.h"
#include "tests/support/sizes.h"
#include "trainer_hooks/load/rounds.h"
#include "varve/layouts.h"

namespace varve::internal::testing {
namespace {

using ::testing::Each;

constexpr int64_t kPiece = int64_t{2} << 20;  // elements

// A rank that sends less than its list of pieces.
class CutShort : public ForwardingRanks {
 public:
  using ForwardingRanks::ForwardingRanks;
  Result<std::vector<std::vector<std::byte>>> AllGather(std::span<const std::byte> mine) override {
    const auto pieces = DecodePieces(mine);
    const bool is_list = pieces.ok() && !pieces->tensors.empty();
    return ForwardingRanks::AllGather(mine.first(mine.size() - (is_list ? 1 : 0)));
  }
};

// BF16 values as FP32.
std::vector<std::byte> Widened(const std::vector<std::byte>& values) {
  std::vector<std::byte> wide(2 * values.size());
  for (size_t i = 0; i < values.size(); i += 2) std::memcpy(&wide[2 * i + 2], &values[i], 2);
  return wide;
}

class DeviceRoundsTest : public LoadRanksTest {
 protected:
  // Returns the result of each rank's load. The rank `cut_short` sends a list that cannot be read.
  static std::vector<Status> LoadAll(std::vector<Rank>* ranks, const CountingReader& reader,
                                     int cut_short = -1) {
    const auto groups = ThreadRanks(static_cast<int>(ranks->size()), std::chrono::minutes(2));
    std::vector<Status> results(ranks->size());
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < ranks->size(); ++i) {
      threads.emplace_back([&, i] {
        Rank& rank = (*ranks)[i];
        const gpu::DeviceScope scope(rank.device);
        CutShort bad(groups[i].get());
        const bool is_bad = static_cast<int>(i) == cut_short;
        results[i] = LoadOne(&rank, reader, is_bad ? &bad : groups[i].get());
      });
    }
    threads.clear();
    return results;
  }
};

// Every rank has something that another has not, so that alone each would fill its rounds
// differently: of the same tensors by name, of columns, and of a master that one of them makes. The
// last has no device.
TEST_F(DeviceRoundsTest, EachChunkIsReadOnceWhateverElseRanksHave) {
  const TestTensor a = RandomTensor("a", DType::kF32, {kPiece}, 1);
  const TestTensor c = RandomTensor("c", DType::kF32, {1024, 4096}, 2);
  const TestTensor s = RandomTensor("s", DType::kF32, {kPiece + 500'000}, 3);
  const TestTensor w = RandomTensor("w", DType::kBF16, {kPiece + 100'000}, 4);
  const TestTensor h = RandomTensor("h", DType::kF32, {1000}, 5);
  const auto reader = SaveAndRead({a, c, s, w, h});
  std::vector<Rank> ranks;
  for (int i = 0; i < 4; ++i) ranks.push_back(MakeRank(i, i == 2 ? 48 * kMiB : 32 * kMiB));
  ranks[0].Add(a);
  for (int i = 0; i < 2; ++i) {
    const ShardLayout columns = SplitEvenly(ShardLayout::Whole({1024, 4096}), 1, {i, 2}).value();
    ranks[i].Add({"c", DType::kF32, columns.LocalShape(), CutShard(c.bytes, 4, columns, {}), ""},
                 columns);
    ranks[i].Add(s);
  }
  ranks[1].Add(w);
  ranks[1].added().derived_from = "m.w";
  ranks[1].Add({"m.w", DType::kF32, w.shape, Widened(w.bytes), ""});
  ranks[1].added().role = TensorRole::kOptimizer;
  ranks[2].Add(w);
  ranks[3].source = nullptr;
  ranks[3].state->AddOnHost({"h", DType::kF32, h.shape, std::vector<std::byte>(4000), ""});
  for (const Status& status : LoadAll(&ranks, *reader)) VARVE_EXPECT_OK(status);
  for (const Rank& rank : ranks) rank.ExpectFilled();
  EXPECT_EQ(std::memcmp(ranks[3].added().data, h.bytes.data(), h.bytes.size()), 0);
  ExpectEachReadOnce(*reader);
  EXPECT_EQ(reader->num_lists(), 8);  // two a rank: to plan its load, and to read with the others
}

TEST_F(DeviceRoundsTest, AListThatCannotBeReadFailsAllRanks) {
  const TestTensor s = RandomTensor("s", DType::kF32, {1000}, 1);
  const auto reader = SaveAndRead({s});
  std::vector<Rank> ranks;
  for (int i = 0; i < 3; ++i) ranks.push_back(MakeRank(i));
  for (Rank& rank : ranks) rank.Add(s);
  EXPECT_THAT(LoadAll(&ranks, *reader, /*cut_short=*/1),
              Each(FailsWith(StatusCode::kCorruption, "what rank 1 reads in rounds")));
}

// This holds also when the weight itself is converted: the master has what the weight can hold.
TEST_F(DeviceRoundsTest, AloneAWeightAndItsMasterAreReadOnce) {
  const TestTensor w = NormalTensor("w", {kPiece + 100'000}, 1);
  const TestTensor v = RandomTensor("v", DType::kBF16, {kPiece + 100'000}, 2);
  const auto reader = SaveAndRead({w, v});
  Rank rank = MakeRank(0);
  for (const TestTensor& weight : {RoundedCopy(w, "w"), v}) {
    rank.Add(weight);
    rank.added().derived_from = "m." + weight.name;
    rank.Add({"m." + weight.name, DType::kF32, weight.shape, Widened(weight.bytes), ""});
    rank.added().role = TensorRole::kOptimizer;
  }
  VARVE_ASSERT_OK(LoadState(*reader,
                            {.optimizer = false, .convert_dtype = true, .devices = rank.source},
                            &rank.state->state())
                      .status());
  rank.ExpectFilled();
  ExpectEachReadOnce(*reader);
}

// A weight that is stored as the rounded copy of its master is made from what is read of that.
TEST_F(DeviceRoundsTest, AMasterIsReadOnceForItselfAndItsWeight) {
  const TestTensor master = NormalTensor("a", {kPiece}, 1);
  const TestTensor other = RandomTensor("b", DType::kF32, {kPiece}, 2);
  const TestTensor weight = RoundedCopy(master, "w");
  const auto reader = SaveAndRead({master, other, weight});
  Rank rank = MakeRank(0);
  for (const TestTensor& tensor : {master, other, weight}) rank.Add(tensor);
  const uint64_t before = BytesRead();
  VARVE_ASSERT_OK(LoadState(*reader, {.devices = rank.source}, &rank.state->state()).status());
  EXPECT_LT(BytesRead() - before, 17 * kMiB);
  rank.ExpectFilled();
}

}  // namespace
}  // namespace varve::internal::testing
