// SPDX-License-Identifier: Apache-2.0
//
// What is done with a store does not change what its replays predict: forks, copies, backups,
// repairs. The frames of several steps need each other there.
#include "base/util.h"
#include "tests/store/internals.h"
#include "tests/store/save/optimizer_training.h"
#include "varve/backup.h"
#include "varve/repair.h"

namespace varve::internal::testing {
namespace {

constexpr uint64_t kFirst = Training::kFirst;

class ReplayCopiesTest : public InternalsTest {
 protected:
  void SetUp() override {
    Reset({.store = {.max_replay_depth = 16}});
    closing_options_.max_replay_depth = 16;
  }

  void SaveNext(Training* training, const std::string& run = "main") {
    const auto hint = training->Next();
    const SaveOptions options{.run = run, .optimizer_step = hint};
    VARVE_ASSERT_OK(Save(hint->number, training->states.back(), options).status());
  }
  static uint64_t ReplayedBytes(const Store& store) {
    for (const CodecUse& use : store.Stats().value().by_codec) {
      if (use.codec == "replay") return use.raw_bytes;
    }
    return 0;
  }
  void ExpectHoldsAll(const Store& store, const Training& training, const std::string& run) {
    for (size_t i = 0; i < training.states.size(); ++i) {
      ExpectHolds(store, kFirst + i, training.states[i], run);
    }
  }
  static void ExpectSoundStore(const Store& store) {
    const auto check = store.Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
  }
};

// Moments and weights of which only a part is wanted, so that they are decoded elsewhere first.
TEST_F(ReplayCopiesTest, PartsAreReadTogether) {
  Training training(300000, /*has_bf16=*/true, /*num=*/2);
  for (int i = 0; i < 3; ++i) SaveNext(&training);
  const auto& tensors = training.states.back();
  const auto reader = store_->OpenCheckpoint("main", kFirst + 2).value();
  const std::vector<Range> slice = {{1000, 299000}};
  std::vector<std::vector<std::byte>> out(tensors.size());
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < tensors.size(); ++i) {
    out[i].resize(static_cast<size_t>(DTypeBits(tensors[i].dtype)) / 8 * 298000);
    requests.push_back(ReadRequest::Tensor(tensors[i].name, out[i], slice));
  }
  VARVE_ASSERT_OK(reader->ReadMany(requests));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t element = static_cast<size_t>(DTypeBits(tensors[i].dtype)) / 8;
    const auto expected = std::span(tensors[i].bytes).subspan(1000 * element, out[i].size());
    EXPECT_TRUE(std::ranges::equal(out[i], expected)) << tensors[i].name;
  }
}

// Chunks that are decoded together: one that is lost is named, and the others are read.
TEST_F(ReplayCopiesTest, ALostChunkOfAStepIsNamed) {
  expect_damage_ = true;
  Training training(70000);
  for (int i = 0; i < 3; ++i) SaveNext(&training);
  std::string lost;  // the second moment of the last step
  VARVE_ASSERT_OK(
      database()->Scan(Family::kChunks, "", [&](std::string_view key, std::string_view value) {
        const FrameInfo info = ParseFrame(AsBytes(value)).value();
        const bool is_square =
            info.replay.has_value() && info.replay->target == ReplayTarget::kSquare;
        if (is_square) lost = key;
        return Status::Ok();
      }));
  ASSERT_FALSE(lost.empty());
  Change(Family::kChunks, lost, std::nullopt);
  const auto reader = store_->OpenCheckpoint("main", kFirst + 2).value();
  std::vector<std::byte> moment(4 * 70000), square(4 * 70000), weight(4 * 70000);
  const std::vector<ReadRequest> all = {ReadRequest::Tensor("exp_avg.p0", moment),
                                        ReadRequest::Tensor("exp_avg_sq.p0", square),
                                        ReadRequest::Tensor("master.p0", weight)};
  EXPECT_THAT(reader->ReadMany(all), FailsWith(StatusCode::kCorruption, "exp_avg_sq.p0"));
  EXPECT_TRUE(moment == training.states.back()[0].bytes);
}

TEST_F(ReplayCopiesTest, ForksGoOnFromTheirStep) {
  Training training(70000);
  for (int i = 0; i < 3; ++i) SaveNext(&training);
  Training fork = training;
  for (int i = 0; i < 2; ++i) SaveNext(&training);
  VARVE_ASSERT_OK(store_->Fork("main", "fork", kFirst + 2).status());
  fork.seed = 500;
  for (int i = 0; i < 2; ++i) SaveNext(&fork, "fork");
  const uint64_t step = 2 * 4 * training.elements;
  EXPECT_EQ(ReplayedBytes(*store_), (4 + 2) * step);
  ExpectHoldsAll(*store_, training, "main");
  ExpectHolds(*store_, kFirst + 4, fork.states[4], "fork");

  // The later steps of main move to a run of their own. What they need is in dropped steps.
  VARVE_ASSERT_OK(store_->Rewind("main", kFirst + 2).status());
  for (const size_t i : {3, 4}) ExpectHolds(*store_, kFirst + i, training.states[i], "main~1");
  VARVE_ASSERT_OK(DropSteps({kFirst, kFirst + 1}));
  for (const size_t i : {3, 4}) ExpectHolds(*store_, kFirst + i, training.states[i], "main~1");
  ExpectHolds(*store_, kFirst + 4, fork.states[4], "fork");
  ExpectSound();
}

TEST_F(ReplayCopiesTest, ACopyHoldsTheSame) {
  Training training(70000, /*has_bf16=*/true);
  for (int i = 0; i < 4; ++i) SaveNext(&training);
  const auto copy = Store::Create(folder_.path() / "copy").value();
  std::vector<CheckpointId> ids;
  for (size_t i = 0; i < 4; ++i) ids.push_back({"main", kFirst + i});
  VARVE_ASSERT_OK(store_->CopyTo(copy.get(), ids).status());
  ExpectHoldsAll(*copy, training, "main");
  ExpectSoundStore(*copy);
}

TEST_F(ReplayCopiesTest, ABackupHoldsTheSame) {
  Training training(70000);
  for (int i = 0; i < 3; ++i) SaveNext(&training);
  const std::filesystem::path backup = folder_.path() / "backup";
  VARVE_ASSERT_OK(BackUp(path(), backup).status());
  SaveNext(&training);
  VARVE_ASSERT_OK(BackUp(path(), backup).status());
  const auto copy = Store::OpenForReading(backup).value();
  ExpectHoldsAll(*copy, training, "main");
  ExpectSoundStore(*copy);
}

// A lost file takes the steps with it that are predicted from its chunks, and no others.
TEST_F(ReplayCopiesTest, ARepairKeepsWhatCanBeReplayed) {
  Training training(70000);
  for (int i = 0; i < 4; ++i) SaveNext(&training);
  HoldMerges();
  const auto files = FilesOf(Family::kChunks);
  ASSERT_EQ(files.size(), 4u);
  // Of the third step. File numbers rise.
  std::vector<std::filesystem::path> paths;
  for (const TableFile& file : files) paths.push_back(file.path);
  std::ranges::sort(paths);
  store_.reset();
  std::filesystem::remove(paths[2]);
  const auto report = RepairStore(path());
  VARVE_ASSERT_OK(report.status());
  ASSERT_EQ(report->lost.size(), 2u);
  EXPECT_EQ(report->lost[0].id.step, kFirst + 2);
  EXPECT_EQ(report->lost[1].id.step, kFirst + 3);

  Reopen(closing_options_);
  for (const size_t i : {0, 1}) ExpectHolds(kFirst + i, training.states[i]);
  ExpectSound();
  // The store is as good as before: it replays.
  const uint64_t before = ReplayedBytes(*store_);
  VARVE_ASSERT_OK(Save(kFirst + 3, training.states[3]).status());
  SaveNext(&training);
  EXPECT_GT(ReplayedBytes(*store_), before);
  for (const size_t i : {3, 4}) ExpectHolds(kFirst + i, training.states[i]);
}

// All that a frame needs is looked for, not only its base.
TEST_F(ReplayCopiesTest, CheckNamesEachStepThatLacksASource) {
  expect_damage_ = true;
  Training training(70000);
  for (int i = 0; i < 3; ++i) SaveNext(&training);
  HoldMerges();
  std::vector<std::filesystem::path> paths;
  for (const TableFile& file : FilesOf(Family::kChunks)) paths.push_back(file.path);
  ASSERT_EQ(paths.size(), 3u);
  std::ranges::sort(paths);
  store_.reset();
  std::filesystem::remove(paths[0]);
  const auto store = Store::OpenForReading(path()).value();
  for (const bool read_data : {false, true}) {
    const auto check = store->Check({.read_data = read_data});
    VARVE_ASSERT_OK(check.status());
    for (const uint64_t step : {kFirst, kFirst + 1, kFirst + 2}) {
      EXPECT_THAT(check->errors, ::testing::Contains(::testing::HasSubstr(StepName("main", step))));
    }
  }
}

// A later save may share a chunk of a replay. Then all that the replay needs stays.
TEST_F(ReplayCopiesTest, SharedReplaysKeepTheirSources) {
  Training training(70000);
  for (int i = 0; i < 3; ++i) SaveNext(&training);
  // Another run, which has no parent to be predicted from, finds the chunks by their digests.
  for (const bool verify : {false, true}) {
    const SaveOptions options{.run = verify ? "verified" : "shared", .verify_sharing = verify};
    const SaveReport report = Save(1, training.states[2], options).value();
    EXPECT_EQ(report.stored_bytes, 0u);
  }
  VARVE_ASSERT_OK(DropSteps({kFirst, kFirst + 1, kFirst + 2}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  for (const char* const run : {"shared", "verified"}) {
    ExpectHolds(*store_, 1, training.states[2], run);
  }
  ExpectSound();
}

// A step that stays while all before it go takes nothing of them with it but keyframes.
TEST_F(ReplayCopiesTest, AStepFromKeyframesNeedsNoneInBetween) {
  Training training(70000);
  for (int i = 0; i < 5; ++i) SaveNext(&training);
  const auto hint = training.Next();
  const SaveOptions options{.optimizer_step = hint, .from_keyframes = true};
  VARVE_ASSERT_OK(Save(hint->number, training.states.back(), options).status());
  EXPECT_EQ(ReplayedBytes(*store_), 4 * 2 * 4 * training.elements);
  SaveNext(&training);
  EXPECT_EQ(ReplayedBytes(*store_), 5 * 2 * 4 * training.elements);
  VARVE_ASSERT_OK(DropSteps({kFirst + 1, kFirst + 2, kFirst + 3, kFirst + 4}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  EXPECT_EQ(GetStats().pending_bytes, 0u);
  EXPECT_EQ(ReplayedBytes(*store_), 2 * 4 * training.elements);
  for (const size_t i : {0, 5, 6}) ExpectHolds(kFirst + i, training.states[i]);
  ExpectSound();
}

}  // namespace
}  // namespace varve::internal::testing
