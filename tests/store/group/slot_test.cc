// SPDX-License-Identifier: Apache-2.0
//
// Tests which slots count: those of this very attempt, by the current processes of the ranks.
#include "store/group/slot.h"

#include <fstream>

#include "store/group/posix_record_log.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr SlotKey kKey{.seed = 7, .attempt = 5, .nonce = 99};

class SlotTest : public ::testing::Test {
 protected:
  SlotTest() : log_(MakePosixRecordLog(folder_.path())) {
    state_.epoch = 3;
    state_.num_ranks = 2;
    state_.ranks = {{0, 10}, {1, 11}};
  }
  Author Rank(uint32_t rank) const { return {state_.epoch, rank, state_.ranks.at(rank)}; }
  void Write(const SlotKey& key, const Author& author, uint64_t root = 1) {
    VARVE_ASSERT_OK(WriteSlot(log_.get(), key, author,
                              {.member = author.member, .root = {root, 0}, .num_tensors = 2}));
  }
  // The ranks whose parts are not there.
  std::vector<uint32_t> Missing() const {
    return SlotGatherer(log_.get(), kKey).Missing(state_, {0, 1});
  }

  TempFolder folder_;
  const std::unique_ptr<RecordLog> log_;
  GroupState state_;
};

TEST_F(SlotTest, PartsAreGatheredAsTheyCome) {
  SlotGatherer slots(log_.get(), kKey);
  EXPECT_FALSE(slots.Gather(state_).value());
  Write(kKey, Rank(1));
  EXPECT_FALSE(slots.Gather(state_).value());
  EXPECT_THAT(slots.Missing(state_, {0, 1}), ElementsAre(0));
  Write(kKey, Rank(0));
  EXPECT_TRUE(slots.Gather(state_).value());
  EXPECT_EQ(slots.parts().at(1).member, 11u);
  const GatheredParts sum = SumOf(slots.parts());
  EXPECT_EQ(sum.totals.num_tensors, 4u);
  EXPECT_EQ(sum.members, DigestOfMembers(state_.MembersOfRanks()));
}

TEST_F(SlotTest, OthersDoNotCount) {
  const Author rank = Rank(1);
  Write(kKey, Rank(0));
  Write({.seed = 7, .attempt = 4, .nonce = 99}, rank);  // an earlier attempt
  EXPECT_THAT(Missing(), ElementsAre(1));
  Write({.seed = 7, .attempt = 5, .nonce = 98}, rank);  // the same number, of another job
  EXPECT_THAT(Missing(), ElementsAre(1));
  Write({.seed = 8, .attempt = 5, .nonce = 99}, rank);  // another group
  EXPECT_THAT(Missing(), ElementsAre(1));
  Write(kKey, {2, 1, rank.member});  // an earlier epoch
  EXPECT_THAT(Missing(), ElementsAre(1));
  Write(kKey, {3, 0, rank.member});  // another rank
  EXPECT_THAT(Missing(), ElementsAre(1));
  Write(kKey, {3, 1, 12});  // another process
  EXPECT_THAT(Missing(), ElementsAre(1));
  VARVE_ASSERT_OK(WriteSlot(log_.get(), kKey, rank, {.member = 12}));
  EXPECT_THAT(Missing(), ElementsAre(1));
  Write(kKey, rank);
  EXPECT_THAT(Missing(), IsEmpty());
}

// Slots are not synced: after a crash of the host one may be of any bytes.
TEST_F(SlotTest, ATornOneIsNone) {
  Write(kKey, Rank(0));
  Write(kKey, Rank(1));
  const auto path = folder_.path() / SlotName(11);
  const auto size = std::filesystem::file_size(path);
  for (const uint64_t cut : {uint64_t{0}, uint64_t{10}, size - 1}) {
    std::filesystem::resize_file(path, cut);
    EXPECT_THAT(Missing(), ElementsAre(1));
  }
}

TEST_F(SlotTest, ThePartOfWhoeverIsTheRankNowIsTaken) {
  SlotGatherer slots(log_.get(), kKey);
  Write(kKey, Rank(0));
  Write(kKey, Rank(1));
  EXPECT_TRUE(slots.Gather(state_).value());
  state_.ranks[1] = 12;  // another process, by a record
  ++state_.next;
  EXPECT_FALSE(slots.Gather(state_).value());
  Write(kKey, Rank(1), /*root=*/2);
  EXPECT_TRUE(slots.Gather(state_).value());
  EXPECT_EQ(slots.parts().at(1).member, 12u);
  EXPECT_EQ(slots.parts().at(1).root.lo, 2u);
}

TEST_F(SlotTest, ALookSeesWhatHasBeenReplaced) {
  std::string stamp;
  Write({.seed = 7, .attempt = 4, .nonce = 1}, Rank(0));
  EXPECT_EQ(ReadSlot(*log_, kKey, Rank(0), &stamp).value(), std::nullopt);
  EXPECT_EQ(log_->Get(SlotName(10), &stamp).value(), std::nullopt);  // as it was
  for (uint64_t root = 1; root <= 20; ++root) {
    Write(kKey, Rank(0), root);
    EXPECT_EQ(ReadSlot(*log_, kKey, Rank(0), &stamp).value().value().root.lo, root);
    EXPECT_EQ(ReadSlot(*log_, kKey, Rank(0), &stamp).value(), std::nullopt);
  }
}

}  // namespace
}  // namespace varve::internal::testing
