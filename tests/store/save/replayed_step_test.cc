// SPDX-License-Identifier: Apache-2.0
//
// Saves of consecutive steps of an optimizer, with what the trainer knows of them.
#include "base/util.h"
#include "tests/store/internals.h"
#include "tests/store/save/optimizer_training.h"

namespace varve::internal::testing {
namespace {

constexpr uint64_t kFirst = Training::kFirst;

class ReplayedStepTest : public InternalsTest {
 protected:
  void SetUp() override { Reset({.store = {.max_replay_depth = 16}}); }

  SaveReport SaveNext(Training* training, bool has_hint = true) {
    const auto hint = training->Next();
    SaveOptions options;
    if (has_hint) options.optimizer_step = hint;
    return Save(hint->number, training->states.back(), options).value();
  }
  void ExpectHoldsAll(const Training& training) {
    for (size_t i = 0; i < training.states.size(); ++i) {
      ExpectHolds(kFirst + i, training.states[i]);
    }
  }
  static uint64_t BytesOf(const SaveReport& report, std::string_view codec) {
    for (const CodecUse& use : report.by_codec) {
      if (use.codec == codec) return use.stored_bytes;
    }
    return 0;
  }
  static uint64_t RawBytesOf(const SaveReport& report, std::string_view codec) {
    for (const CodecUse& use : report.by_codec) {
      if (use.codec == codec) return use.raw_bytes;
    }
    return 0;
  }
};

TEST_F(ReplayedStepTest, StoresLittleMoreThanTheGradients) {
  Training training;
  SaveNext(&training);
  const uint64_t tensor = 4 * training.elements;
  for (int i = 0; i < 5; ++i) {
    const SaveReport report = SaveNext(&training);
    // The second moment and the weight follow from the step before and the first moment.
    EXPECT_EQ(RawBytesOf(report, "replay"), 2 * tensor);
    EXPECT_LT(BytesOf(report, "replay"), tensor / 25);
    EXPECT_LT(report.stored_bytes, tensor * 9 / 10);
  }
  ExpectHoldsAll(training);
  ExpectSound();
}

TEST_F(ReplayedStepTest, GradientsOfBf16AreStoredInsteadOfTheMoment) {
  Training training(300000, /*has_bf16=*/true);
  SaveNext(&training);
  const uint64_t tensor = 4 * training.elements;
  for (int i = 0; i < 5; ++i) {
    const SaveReport report = SaveNext(&training);
    EXPECT_EQ(RawBytesOf(report, "replay"), 3 * tensor);
    EXPECT_LT(report.stored_bytes, tensor / 2);
  }
  ExpectHoldsAll(training);
  ExpectSound();
}

TEST_F(ReplayedStepTest, ChainsEndWhereTheyWouldBeTooDeep) {
  Reset({.store = {.max_replay_depth = 6}});
  closing_options_.max_replay_depth = 6;
  Training training(70000);
  int num_replays = 0, num_others = 0;
  for (int i = 0; i < 14; ++i) {
    const SaveReport report = SaveNext(&training);
    ++(BytesOf(report, "replay") > 0 ? num_replays : num_others);
  }
  EXPECT_GE(num_replays, 8);
  EXPECT_GE(num_others, 3);
  ExpectHoldsAll(training);
  VARVE_EXPECT_OK(
      database()->Scan(Family::kChunks, "", [](std::string_view, std::string_view value) {
        const FrameInfo info = ParseFrame(AsBytes(value)).value();
        EXPECT_LE(info.depth, 6u);
        return Status::Ok();
      }));
  ExpectSound();
}

// How many replays follow each other with the depth that is the default. A moment that is a replay,
// too, makes its chain longer.
class ReplaysInARowTest : public ReplayedStepTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Bf16Gradients, ReplaysInARowTest, ::testing::Bool());

TEST_P(ReplaysInARowTest, AreBounded) {
  Reset({});
  closing_options_ = {};
  Training training(9000, /*has_bf16=*/GetParam());
  std::vector<int> runs = {0};  // of replays, between saves that are none
  for (int i = 0; i < 42; ++i) {
    if (BytesOf(SaveNext(&training), "replay") > 0) {
      ++runs.back();
    } else {
      runs.push_back(0);
    }
  }
  runs.pop_back();
  if (GetParam()) {
    EXPECT_THAT(runs, ::testing::ElementsAre(0, 13, 13));
  } else {
    EXPECT_THAT(runs, ::testing::ElementsAre(0, 14, 14));
  }
  ExpectHoldsAll(training);
  ExpectSound();
}

// Then a hint makes no difference.
TEST_F(ReplayedStepTest, NoChainMayBeSoShort) {
  std::vector<uint64_t> stored;
  for (const bool has_hint : {true, false}) {
    Reset({.digest_seed = 1, .store = {.max_replay_depth = 3}});
    closing_options_ = {};
    Training training(9000);
    for (int i = 0; i < 4; ++i) SaveNext(&training, has_hint);
    stored.push_back(GetStats().stored_bytes);
  }
  EXPECT_EQ(stored[0], stored[1]);
}

// What is dropped stays as long as something is predicted from it, and no longer.
TEST_F(ReplayedStepTest, DroppedSourcesStayAsLongAsTheyAreNeeded) {
  Training training(70000, /*has_bf16=*/true, /*num=*/2);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(BytesOf(SaveNext(&training), "replay") > 0, i > 0);
  VARVE_ASSERT_OK(DropSteps({kFirst, kFirst + 1, kFirst + 3, kFirst + 6}));
  for (const size_t i : {2, 4, 5, 7}) ExpectHolds(kFirst + i, training.states[i]);
  ExpectSound();
  VARVE_ASSERT_OK(DropSteps({kFirst + 2, kFirst + 4, kFirst + 7}));
  ExpectHolds(kFirst + 5, training.states[5]);
  ExpectSound();
  const CheckpointId last{"main", kFirst + 5};
  EXPECT_EQ(store_->BytesFreedByDrop({&last, 1}).value(), GetStats().stored_bytes);
  VARVE_ASSERT_OK(DropSteps({kFirst + 5}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  ExpectEmpty();
}

// A hint that is wrong costs few bytes, and never a bit.
TEST_F(ReplayedStepTest, AWrongHintIsHarmless) {
  const auto unhinted = Store::Create(folder_.path() / "unhinted").value();
  Training training(70000);
  const auto next = [&] {
    const auto hint = training.Next();
    // An FP32 copy, which shares its frames.
    training.states.back().push_back(training.states.back()[2]);
    training.states.back().back().name = "twin";
    return hint;
  };
  const auto save_unhinted = [&](uint64_t step) {
    const auto writer = unhinted->Begin(step).value();
    for (const TestTensor& tensor : training.states.back()) {
      VARVE_EXPECT_OK(writer->Put(tensor.view()));
    }
    return writer->Commit().value().stored_bytes;
  };
  next();
  VARVE_ASSERT_OK(Save(kFirst, training.states.back()).status());
  save_unhinted(kFirst);
  const std::function<void(OptimizerStep*)> mistakes[] = {
      [](OptimizerStep* hint) { hint->groups[0].learning_rate = 1; },
      [](OptimizerStep* hint) { hint->groups[0].beta1 = std::nan(""); },
      [](OptimizerStep* hint) { hint->groups[0].beta1 = -3; },
      [](OptimizerStep* hint) { hint->groups[0].beta1 = 0; },
      [](OptimizerStep* hint) { hint->groups[0].beta1 = 1; },
      [](OptimizerStep* hint) { hint->groups[0].eps = 1e300; },
      [](OptimizerStep* hint) { hint->number = 0; },
      [](OptimizerStep* hint) { hint->gradient_scale = 0; },
      [](OptimizerStep* hint) { hint->groups.clear(); },
      [](OptimizerStep* hint) { hint->parameters[0].group = 7; },
      [](OptimizerStep* hint) { hint->parameters[0].moment = "nowhere"; },
      [](OptimizerStep* hint) { hint->parameters[0].moment = hint->parameters[0].weight; },
      [](OptimizerStep* hint) { hint->parameters[0].weight = "p0"; },
      [](OptimizerStep* hint) { hint->parameters[0].moment = "twin"; },
      [](OptimizerStep* hint) { hint->parameters[0].square = "twin"; },
      [](OptimizerStep* hint) {
        std::swap(hint->parameters[0].moment, hint->parameters[0].square);
      },
      [](OptimizerStep* hint) { hint->parameters.push_back(hint->parameters[0]); },
  };
  for (const auto& mistake : mistakes) {
    const auto hint = next();
    const uint64_t step = hint->number;
    mistake(hint.get());
    const SaveReport report = Save(step, training.states.back(), {.optimizer_step = hint}).value();
    EXPECT_LT(static_cast<double>(report.stored_bytes),
              1.15 * static_cast<double>(save_unhinted(step)))
        << "mistake " << &mistake - mistakes;
  }
  ExpectHoldsAll(training);
  ExpectSound();
}

// The hint tells of one step, and two lie between the saves.
TEST_F(ReplayedStepTest, AStepThatWasNotSavedCostsBytes) {
  Training training(70000);
  SaveNext(&training);
  const uint64_t next = SaveNext(&training).stored_bytes;
  training.Next();
  EXPECT_GT(SaveNext(&training).stored_bytes, next + next / 4);
  ExpectHolds(kFirst, training.states[0]);
  ExpectHolds(kFirst + 1, training.states[1]);
  ExpectHolds(kFirst + 3, training.states[3]);
  ExpectSound();
}

TEST_F(ReplayedStepTest, SavesWithoutAHintGoOn) {
  Training training(70000);
  for (int i = 0; i < 6; ++i) {
    const bool has_hint = i % 3 != 2;
    EXPECT_EQ(BytesOf(SaveNext(&training, has_hint), "replay") > 0, has_hint && i > 0);
  }
  ExpectHoldsAll(training);
  ExpectSound();
}

// Many tensors go through the stages in one job. Some chunks are shared and some are literals.
TEST_F(ReplayedStepTest, SmallTensorsAndSharedChunks) {
  Training training(300, /*has_bf16=*/false, /*num=*/60);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(BytesOf(SaveNext(&training), "replay") > 0, i > 0);
  ExpectHoldsAll(training);
  // Parts of the step are as they were.
  for (const size_t kept : {0, 1, 2, 3}) {
    const auto hint = training.Next();
    std::vector<TestTensor>& state = training.states.back();
    const std::vector<TestTensor>& before = training.states[training.states.size() - 2];
    for (size_t t = kept; t < state.size(); t += 4) {
      if (t % 3 == 0) state[t].bytes = before[t].bytes;
      if (t % 3 == 1) std::ranges::fill(state[t].bytes, std::byte{0});
    }
    VARVE_ASSERT_OK(Save(hint->number, state, {.optimizer_step = hint}).status());
  }
  ExpectHoldsAll(training);
  ExpectSound();
}

TEST_F(ReplayedStepTest, ShardsOfOneNumberBelongTogether) {
  Training training(70000, /*has_bf16=*/false, /*num=*/2);
  uint64_t replayed = 0;
  for (int i = 0; i < 3; ++i) {
    const auto hint = training.Next();
    hint->parameters.pop_back();
    const auto writer = store_->Begin(hint->number, {.optimizer_step = hint}).value();
    std::vector<TestTensor>& state = training.states.back();
    for (size_t t = 0; t < state.size(); ++t) {
      TensorView view = state[t].view();
      const TestTensor& first = state[t % 4];
      view.name = first.name;
      view.derived_from = first.derived_from;
      view.shard = static_cast<uint32_t>(t / 4);
      VARVE_ASSERT_OK(writer->Put(view));
    }
    replayed = RawBytesOf(writer->Commit().value(), "replay");
    const auto reader = store_->OpenCheckpoint("main", hint->number).value();
    for (size_t t = 0; t < state.size(); ++t) {
      std::vector<std::byte> out(state[t].bytes.size());
      const auto request = ReadRequest::Shard(state[t % 4].name, static_cast<uint32_t>(t / 4), out);
      VARVE_EXPECT_OK(reader->ReadMany({&request, 1}));
      EXPECT_TRUE(out == state[t].bytes) << state[t].name;
    }
  }
  EXPECT_EQ(replayed, 2 * 4 * (70000u + 70001u));
  ExpectSound();
}

// Programs that know no replays may use such a store.
TEST_F(ReplayedStepTest, AStoreForZstdHasNone) {
  Reset({.store = {.entropy = Entropy::kZstd}});
  Reopen({.entropy = Entropy::kRans});
  Training training(70000);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(BytesOf(SaveNext(&training), "replay"), 0u);
  ExpectHoldsAll(training);
}

// The step before cannot be read. That is no reason to lose this save.
TEST_F(ReplayedStepTest, ADamagedStepBeforeIsNoSource) {
  expect_damage_ = true;
  Training training(70000);
  for (int i = 0; i < 3; ++i) SaveNext(&training);
  std::string key, value;
  VARVE_EXPECT_OK(
      database()->Scan(Family::kChunks, "", [&](std::string_view k, std::string_view v) {
        key = k;
        value = v;
        return Status::Ok();
      }));
  value[value.size() / 2] = static_cast<char>(value[value.size() / 2] ^ 1);
  Change(Family::kChunks, key, value);
  EXPECT_EQ(BytesOf(SaveNext(&training), "replay"), 0u);
  ExpectHolds(kFirst + 3, training.states[3]);
  EXPECT_GT(BytesOf(SaveNext(&training), "replay"), 0u);
  ExpectHolds(kFirst + 4, training.states[4]);
}

}  // namespace
}  // namespace varve::internal::testing
