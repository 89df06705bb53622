// SPDX-License-Identifier: Apache-2.0
//
// Random sequences of public calls, with crashes between them, compared with a model in memory. A
// sequence that fails is made as short as possible and printed. $VARVE_MODEL_SEED is the first
// seed. With VARVE_FULL_SIZE=1 there are thousands of sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>

#include "tests/store/model/calls.h"
#include "tests/store/model/content.h"
#include "tests/store/model/player.h"
#include "tests/support/temp_folder.h"

namespace varve::internal::testing {
namespace {

bool FullSize() { return std::getenv("VARVE_FULL_SIZE") != nullptr; }

uint64_t FirstSeed() {
  const char* const seed = std::getenv("VARVE_MODEL_SEED");
  return seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
}

class ModelTest : public ::testing::Test {
 protected:
  std::string PlayHere(std::span<const Call> calls, Mistake mistake = Mistake::kNone) {
    return Play(folder_.path() / "stores", calls, mistake);
  }
  std::vector<Call> ShrinkHere(std::vector<Call> calls, Mistake mistake = Mistake::kNone) {
    return Shrink(std::move(calls),
                  [&](std::span<const Call> fewer) { return !PlayHere(fewer, mistake).empty(); });
  }
  // A sequence that fails with the mistake, made short.
  std::vector<Call> FindMistake(Mistake mistake) {
    for (uint64_t seed = 1; seed < 100; ++seed) {
      std::vector<Call> calls = RandomCalls(seed, 40);
      if (PlayHere(calls, mistake).empty()) continue;
      std::vector<Call> few = ShrinkHere(std::move(calls), mistake);
      std::cout << "seed " << seed << ": " << PlayHere(few, mistake) << "\n" << ToText(few);
      return few;
    }
    return {};
  }

  TempFolder folder_;
};

TEST_F(ModelTest, TheStoreHoldsWhatTheModelHolds) {
  const uint64_t first = FirstSeed(), number = FullSize() ? 3000 : 12;
  for (uint64_t seed = first; seed < first + number; ++seed) {
    const std::vector<Call> calls = RandomCalls(seed, 20 + seed % 60);
    const std::string wrong = PlayHere(calls);
    const uint64_t done = seed - first + 1;
    if (done % 250 == 0) std::cout << done << " of " << number << " sequences" << std::endl;
    if (wrong.empty()) continue;
    const std::vector<Call> few = ShrinkHere(calls);
    FAIL() << "VARVE_MODEL_SEED=" << seed << ": " << wrong << "\nThese " << few.size() << " of "
           << calls.size() << " calls fail, too: " << PlayHere(few) << "\n"
           << ToText(few);
  }
  std::cout << number << " sequences of calls, from seed " << first << "\n";
}

TEST_F(ModelTest, AModelThatForgetsDropsIsFound) {
  const std::vector<Call> few = FindMistake(Mistake::kModelForgetsDrops);
  EXPECT_EQ(few.size(), 2u);  // a save and a drop
}

TEST_F(ModelTest, ASkippedCallOfTheStoreIsFound) {
  const std::vector<Call> few = FindMistake(Mistake::kStoreSkipsTags);
  EXPECT_EQ(few.size(), 2u);  // a save and a tag
}

// Else the sequences would say nothing of replays.
TEST_F(ModelTest, StepsOfATrainingAreReplayed) {
  const auto store = Store::Create(folder_.path() / "store").value();
  uint8_t content = 0;
  for (uint64_t step = 0; step < 6; ++step) {
    content = NextTrained(content, 0);
    const auto writer = store->Begin(step, {.optimizer_step = HintOf(content)}).value();
    ASSERT_TRUE(PutContent(content, writer.get()).ok());
    const auto uses = writer->Commit().value().by_codec;
    EXPECT_EQ(std::ranges::any_of(uses, [](const auto& use) { return use.codec == "replay"; }),
              step > 0);
  }
}

TEST(ContentTest, EachTrainingIsReached) {
  std::set<uint8_t> reached;
  for (const int leaves_after : {0, 1, 2}) {
    uint8_t content = 0;
    for (int i = 0; i < 3 * kStepsOfTraining; ++i) {
      // Leaves the first training at once, after its third step, or after its sixth.
      content = NextTrained(content, i == kStepsUntilOneLeaves * leaves_after ? 1 : 0);
      reached.insert(content);
    }
  }
  EXPECT_EQ(reached.size(), size_t{kNumTrainings} * kStepsOfTraining);
}

TEST(CallsTest, BytesAreCalls) {
  const std::vector<Call> calls = RandomCalls(7, 50);
  const std::string bytes = EncodeCalls(calls);
  EXPECT_EQ(DecodeCalls(std::as_bytes(std::span(bytes))), calls);
  const std::string any = "\x0f\x01\x02\x03\x14";  // one call, and a byte too many
  const auto decoded = DecodeCalls(std::as_bytes(std::span(any)));
  ASSERT_EQ(decoded.size(), 1u);
  EXPECT_EQ(ToText(decoded), "{CallKind::kReopen, 1, 2, 3},  // run main, step 2\n");
}

TEST(CallsTest, EachKindComesFromASeed) {
  std::vector<bool> comes(kNumCallKinds);
  for (const Call& call : RandomCalls(1, 1000)) comes[static_cast<size_t>(call.kind)] = true;
  EXPECT_EQ(comes, std::vector<bool>(kNumCallKinds, true));
}

// Fails with both a save of step 3 and a fork, whatever stands between.
TEST(CallsTest, ShrinkLeavesWhatFails) {
  const Call save{CallKind::kSave, 0, 3, 0}, fork{CallKind::kFork, 1, 1, 1};
  std::vector<Call> calls = RandomCalls(3, 30);
  std::erase(calls, save);
  calls.insert(calls.begin() + 5, save);
  calls.insert(calls.begin() + 20, fork);
  const auto few = Shrink(calls, [&](std::span<const Call> fewer) {
    return std::find(fewer.begin(), fewer.end(), save) != fewer.end() &&
           std::find(fewer.begin(), fewer.end(), fork) != fewer.end();
  });
  EXPECT_EQ(few, (std::vector<Call>{save, fork}));
}

}  // namespace
}  // namespace varve::internal::testing
