// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/load/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

using Ranks = std::vector<RankPieces>;

TEST(RoundsTest, ARankAloneFillsRoundsInTheOrderOfNames) {
  const Ranks ranks = {{.round_bytes = 10, .tensors = {{"b", {6, 4, 1}}, {"a", {3}}, {"c", {9}}}}};
  const Rounds rounds = PlanRounds(ranks);
  EXPECT_THAT(rounds.of_pieces,
              ElementsAre(Pair("a", ElementsAre(0)), Pair("b", ElementsAre(0, 1, 1)),
                          Pair("c", ElementsAre(2))));
  EXPECT_EQ(rounds.count, 3u);
}

TEST(RoundsTest, APieceIsInOneRoundWhateverElseRanksHave) {
  const Ranks ranks = {{.round_bytes = 10, .tensors = {{"a", {5, 5, 5}}, {"t", {5, 5}}}},
                       {.round_bytes = 10, .tensors = {{"t", {5, 5}}, {"z", {5}}}}};
  const Rounds rounds = PlanRounds(ranks);
  EXPECT_THAT(rounds.of_pieces,
              ElementsAre(Pair("a", ElementsAre(0, 0, 1)), Pair("t", ElementsAre(1, 2)),
                          Pair("z", ElementsAre(2))));
}

// These are like the stages of a pipeline: none waits for another.
TEST(RoundsTest, RanksThatShareNothingHaveTheirRoundsAtOnce) {
  const Ranks ranks = {{.round_bytes = 10, .tensors = {{"a", {9, 9, 9}}}},
                       {.round_bytes = 10, .tensors = {{"b", {9, 9}}}}};
  const Rounds rounds = PlanRounds(ranks);
  EXPECT_THAT(rounds.of_pieces,
              ElementsAre(Pair("a", ElementsAre(0, 1, 2)), Pair("b", ElementsAre(0, 1))));
  EXPECT_EQ(rounds.count, 3u);
}

TEST(RoundsTest, EachRankHasItsOwnLimit) {
  const Ranks ranks = {{.round_bytes = 20, .tensors = {{"a", {5, 5, 5, 5}}}},
                       {.round_bytes = 9, .tensors = {{"a", {4, 4, 4, 4}}}}};
  EXPECT_THAT(PlanRounds(ranks).of_pieces, ElementsAre(Pair("a", ElementsAre(0, 0, 1, 1))));
}

TEST(RoundsTest, ALongPieceHasARoundForItself) {
  const Ranks ranks = {{.round_bytes = 10, .tensors = {{"a", {1}}, {"b", {11}}, {"c", {1}}}},
                       {.round_bytes = 20, .tensors = {{"b", {11}}, {"c", {1}}, {"d", {1}}}}};
  const Rounds rounds = PlanRounds(ranks);
  EXPECT_THAT(rounds.of_pieces, ElementsAre(Pair("a", ElementsAre(0)), Pair("b", ElementsAre(1)),
                                            Pair("c", ElementsAre(2)), Pair("d", ElementsAre(2))));
}

TEST(RoundsTest, RanksMayCutATensorIntoOtherNumbersOfPieces) {
  const Ranks ranks = {{.round_bytes = 10, .tensors = {{"a", {10}}}},
                       {.round_bytes = 10, .tensors = {{"a", {10, 10, 10}}}},
                       {.round_bytes = 10, .tensors = {{"a", {}}}}};
  EXPECT_THAT(PlanRounds(ranks).of_pieces, ElementsAre(Pair("a", ElementsAre(0, 1, 2))));
}

TEST(RoundsTest, RanksWithoutPiecesNeedNoRounds) {
  EXPECT_EQ(PlanRounds({}).count, 0u);
  EXPECT_EQ(PlanRounds(Ranks(3)).count, 0u);
  const Ranks ranks = {{}, {.round_bytes = 1, .tensors = {{"a", {1, 1}}}}, {}};
  EXPECT_EQ(PlanRounds(ranks).count, 2u);
}

// Whatever is wanted: no rank has too much of a round, and each has its pieces in order.
TEST(RoundsTest, RandomListsKeepLimitsAndOrder) {
  std::mt19937 random(7);
  const auto upto = [&](uint64_t n) { return random() % (n + 1); };
  for (int i = 0; i < 200; ++i) {
    Ranks ranks(1 + upto(5));
    for (RankPieces& rank : ranks) {
      rank.round_bytes = upto(100);
      for (uint64_t n = upto(8); n > 0; --n) {
        std::vector<uint64_t>& pieces = rank.tensors[std::string(1, 'a' + char(upto(8)))];
        pieces.resize(upto(4));
        for (uint64_t& bytes : pieces) bytes = 1 + upto(60);
      }
    }
    const Rounds rounds = PlanRounds(ranks);
    for (const RankPieces& rank : ranks) {
      std::vector<uint64_t> bytes(rounds.count), number(rounds.count);
      size_t last = 0;
      for (const auto& [name, pieces] : rank.tensors) {
        for (size_t k = 0; k < pieces.size(); ++k) {
          const size_t round = rounds.of_pieces.at(name)[k];
          EXPECT_LE(last, round);
          last = round;
          bytes[round] += pieces[k];
          ++number[round];
        }
      }
      for (size_t k = 0; k < rounds.count; ++k) {
        EXPECT_TRUE(bytes[k] <= rank.round_bytes || number[k] == 1) << bytes[k];
      }
    }
  }
}

TEST(RoundsTest, BytesThatAreOnlyClaimedDoNoHarm) {
  const Ranks ranks = {{.round_bytes = UINT64_MAX, .tensors = {{"a", {UINT64_MAX, UINT64_MAX, 1}}}},
                       {.round_bytes = 0, .tensors = {{"a", {UINT64_MAX, 1, 1, UINT64_MAX}}}}};
  EXPECT_THAT(PlanRounds(ranks).of_pieces, ElementsAre(Pair("a", ElementsAre(0, 1, 2, 3))));
}

RankPieces SomePieces() {
  return {.round_bytes = 100, .tensors = {{"a", {1, 2}}, {"b", {}}, {"wte", {30}}}};
}

TEST(RoundsTest, ListsComeBackAsTheyWere) {
  for (const RankPieces& pieces : {SomePieces(), RankPieces()}) {
    const auto decoded = DecodePieces(EncodePieces(pieces));
    VARVE_ASSERT_OK(decoded.status());
    EXPECT_EQ(*decoded, pieces);
  }
}

TEST(RoundsTest, AListThatIsCutShortIsDamaged) {
  const std::vector<std::byte> bytes = EncodePieces(SomePieces());
  // Behind 8 bytes, and behind the 25 or 17 of each tensor, it would be a list.
  const size_t lists[] = {8, 8 + 33, 8 + 33 + 17, bytes.size()};
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = DecodePieces(std::span(bytes).first(size));
    if (std::ranges::count(lists, size) > 0) {
      VARVE_EXPECT_OK(decoded.status());
    } else {
      EXPECT_THAT(decoded, FailsWith(StatusCode::kCorruption, "is damaged")) << size;
    }
  }
}

TEST(RoundsTest, NamesOutOfOrderOrTwiceAreDamage) {
  const std::vector<std::byte> a = EncodePieces({.tensors = {{"a", {1}}}});
  const std::vector<std::byte> b = EncodePieces({.tensors = {{"b", {1}}}});
  const auto join = [](std::vector<std::byte> list, const std::vector<std::byte>& more) {
    list.insert(list.end(), more.begin() + 8, more.end());
    return list;
  };
  VARVE_EXPECT_OK(DecodePieces(join(a, b)).status());
  EXPECT_THAT(DecodePieces(join(b, a)), FailsWith(StatusCode::kCorruption, "58 bytes"));
  EXPECT_THAT(DecodePieces(join(a, a)), FailsWith(StatusCode::kCorruption, "58 bytes"));
}

// The lengths are of bytes that follow, or of pieces.
TEST(RoundsTest, LengthsThatAreOnlyClaimedAreDamage) {
  const std::vector<std::byte> list = EncodePieces({.tensors = {{"a", {1}}}});
  for (const size_t at : {8, 17}) {
    for (const uint64_t length : {uint64_t{1} << 61, UINT64_MAX}) {
      std::vector<std::byte> bytes = list;
      std::memcpy(&bytes[at], &length, sizeof length);
      EXPECT_THAT(DecodePieces(bytes), FailsWith(StatusCode::kCorruption, "is damaged"));
    }
  }
}

TEST(RoundsTest, TheRankWhoseListIsDamagedIsNamed) {
  std::vector<std::vector<std::byte>> lists(3, EncodePieces(SomePieces()));
  const auto rounds = PlanRoundsOf(lists);
  VARVE_ASSERT_OK(rounds.status());
  EXPECT_EQ(rounds->count, 1u);
  EXPECT_THAT(rounds->of_pieces.at("b"), IsEmpty());
  lists[1].pop_back();
  EXPECT_THAT(PlanRoundsOf(lists), FailsWith(StatusCode::kCorruption, "what rank 1 reads"));
}

}  // namespace
}  // namespace varve::internal::testing
