// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>

#include "tests/support/forwarding_reader.h"
#include "tests/trainer_hooks/state_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LoadTest : public StateTest {};

TEST_F(LoadTest, LoadsAllOfAState) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  into.state.metrics["loss"] = 2;
  into.state.tags = {"mine"};
  const auto report = Load(5, &into);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(SameTensors(saved, into).size(), 17u);
  EXPECT_EQ(report->id, (CheckpointId{"main", 5}));
  EXPECT_EQ(report->num_tensors, 17u);
  EXPECT_EQ(report->bytes, 60u * (3 * 4 + 2) + 16);
  EXPECT_THAT(report->missing, IsEmpty());
  EXPECT_THAT(report->unexpected, IsEmpty());
  EXPECT_THAT(report->converted, IsEmpty());
  EXPECT_THAT(report->made, IsEmpty());
  EXPECT_EQ(into.state.trainer.global_step, 1);
  EXPECT_EQ(into.state.metrics.at("loss"), 2);
  EXPECT_THAT(into.state.tags, ElementsAre("mine"));
}

TEST_F(LoadTest, LoadsThroughAReaderThatAUserMade) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  const ForwardingReader reader(store_->OpenCheckpoint("main", 5).value());
  TestTrainer into = MixedPrecisionTrainer(2);
  const auto report = LoadState(reader, {.rank = 3}, &into.state);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(SameTensors(saved, into).size(), 17u);
  EXPECT_EQ(into.state.trainer.global_step, 1);
  EXPECT_EQ(into.state.items.size(), 2u);
}

TEST_F(LoadTest, ReplacesTheItems) {
  SaveState(5, MixedPrecisionTrainer(1).state);
  TestTrainer into = MixedPrecisionTrainer(2);
  into.state.items.push_back({"mine", 1, {}});
  VARVE_ASSERT_OK(Load(5, &into).status());
  const std::vector<StateItem>& items = into.state.items;
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].name, "loader");
  EXPECT_EQ(items[0].rank, std::nullopt);
  EXPECT_EQ(items[0].value, BytesOf(std::vector<uint64_t>{1}));
  EXPECT_EQ(items[1].name, "loader");
  EXPECT_EQ(items[1].rank, 3u);
  EXPECT_EQ(items[1].value, BytesOf(std::vector<uint64_t>{2}));
}

TEST_F(LoadTest, CheckpointWithoutTrainerStateLeavesTheTargets) {
  VARVE_ASSERT_OK(Save(5, {}).status());
  TestTrainer into;
  into.state.trainer.epoch = 7;
  into.state.items.push_back({"mine", 1, {}});
  VARVE_ASSERT_OK(Load(5, &into).status());
  EXPECT_EQ(into.state.trainer.epoch, 7);
  EXPECT_THAT(into.state.items, IsEmpty());
}

TEST_F(LoadTest, ShapesAreComparedBeforeAnyCopy) {
  SaveState(5, MixedPrecisionTrainer(1).state);
  TestTrainer into = MixedPrecisionTrainer(2);
  into.Get("model.h.0.w").shape = {2, 8};
  ExpectRefused(5, &into, "tensor model.h.0.w: shape [4, 4], expected [2, 8]");
  into.Get("model.h.0.w").shape = {16};
  ExpectRefused(5, &into, "tensor model.h.0.w: shape [4, 4], expected [16]");
}

TEST_F(LoadTest, ListsAllFaultsAtOnce) {
  SaveState(5, MixedPrecisionTrainer(1).state);
  TestTrainer into = MixedPrecisionTrainer(2);
  into.Get("model.mask").name = "model.other";
  into.Get("exp_avg.bias").shape = {2, 2};
  into.Get("exp_avg.wte").dtype = DType::kI32;
  const LoadOptions options{.strictness = Strictness::kLogUnexpected};
  const std::deque<std::vector<std::byte>> before = into.memory;
  const auto report = Load(5, &into, options);
  EXPECT_EQ(report.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(report.status().message(),
            "step 5 of run main does not fit:\n"
            "tensor exp_avg.wte: dtype F32, expected I32\n"
            "tensor exp_avg.bias: shape [4], expected [2, 2]\n"
            "tensor model.other: missing in the checkpoint, expected U8 [4, 4]");
  EXPECT_EQ(into.memory, before);
  EXPECT_EQ(into.state.trainer.global_step, 2);
  EXPECT_EQ(into.state.items[0].value, BytesOf(std::vector<uint64_t>{2}));
  // One fault must not hide another of the same tensor.
  into.Get("exp_avg.wte").shape = {32};
  ExpectRefused(5, &into,
                "tensor exp_avg.wte: shape [8, 4], expected [32]\n"
                "tensor exp_avg.wte: dtype F32, expected I32\n",
                options);
}

TEST_F(LoadTest, StrictnessDecidesAboutNames) {
  SaveState(5, MixedPrecisionTrainer(1).state);
  const auto load = [&](Strictness strictness) {
    TestTrainer into = MixedPrecisionTrainer(2);
    into.Get("model.mask").name = "model.new";
    return Load(5, &into, {.strictness = strictness});
  };
  const std::string missing = "tensor model.new: missing in the checkpoint, expected U8 [4, 4]";
  const std::string unexpected =
      "tensor model.mask: unexpected U8 [4, 4], the target has no such tensor";
  EXPECT_THAT(load(Strictness::kRaiseAll),
              FailsWith(StatusCode::kInvalidArgument, missing + "\n" + unexpected));
  EXPECT_THAT(load(Strictness::kLogUnexpected), FailsWith(StatusCode::kInvalidArgument, missing));
  EXPECT_THAT(load(Strictness::kAssumeOkUnexpected),
              FailsWith(StatusCode::kInvalidArgument, missing));
  const auto report = load(Strictness::kIgnoreAll);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->num_tensors, 16u);
  EXPECT_THAT(report->missing, ElementsAre("model.new"));
  EXPECT_THAT(report->unexpected, ElementsAre("model.mask"));
}

TEST_F(LoadTest, UnexpectedIsListedOrNotLookedFor) {
  SaveState(5, MixedPrecisionTrainer(1).state);
  TestTrainer into = MixedPrecisionTrainer(2);
  into.Remove("model.mask");
  into.Remove("exp_avg.wte");
  ExpectRefused(5, &into, "tensor exp_avg.wte: unexpected F32 [8, 4]");
  const auto logged = Load(5, &into, {.strictness = Strictness::kLogUnexpected});
  ASSERT_TRUE(logged.ok()) << logged.status().ToString();
  EXPECT_THAT(logged->unexpected, ElementsAre("exp_avg.wte", "model.mask"));
  const auto assumed = Load(5, &into, {.strictness = Strictness::kAssumeOkUnexpected});
  ASSERT_TRUE(assumed.ok()) << assumed.status().ToString();
  EXPECT_THAT(assumed->unexpected, IsEmpty());
}

TEST_F(LoadTest, StrictnessHasNames) {
  for (const Strictness strictness : {Strictness::kRaiseAll, Strictness::kLogUnexpected,
                                      Strictness::kAssumeOkUnexpected, Strictness::kIgnoreAll}) {
    EXPECT_EQ(ParseStrictness(StrictnessName(strictness)).value(), strictness);
  }
  EXPECT_EQ(StrictnessName(Strictness::kAssumeOkUnexpected), "assume_ok_unexpected");
  EXPECT_THAT(ParseStrictness("strict"),
              FailsWith(StatusCode::kInvalidArgument, "strictness \"strict\", expected raise_all"));
}

TEST_F(LoadTest, OrderOfParametersMayChange) {
  TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  std::mt19937 random(8);
  std::shuffle(into.state.tensors.begin(), into.state.tensors.end(), random);
  ExpectLoads(5, saved, &into);
  std::shuffle(into.state.tensors.begin(), into.state.tensors.end(), random);
  SaveState(6, into.state);
  TestTrainer again = MixedPrecisionTrainer(3);
  ExpectLoads(6, saved, &again);
}

TEST_F(LoadTest, EmptyTensorsAndScalarsLoad) {
  TestTrainer saved;
  saved.Add({.name = "scalar"}, 1);
  saved.Add({.name = "empty", .shape = {0, 3}}, 1);
  saved.Add({.name = "empty.too", .shape = {0, 3}}, 1);
  SaveState(5, saved.state);
  TestTrainer into;
  into.Add({.name = "scalar"}, 2);
  into.state.tensors.push_back({{.name = "empty", .shape = {0, 3}}});
  into.state.tensors.push_back({{.name = "empty.too", .dtype = DType::kF16, .shape = {0, 3}}});
  const auto report = Load(5, &into, {.convert_dtype = true});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->num_tensors, 3u);
  EXPECT_EQ(into.Bytes("scalar"), saved.Bytes("scalar"));
  // A tensor without bytes has nothing to share.
  into.state.tensors.push_back({{.name = "empty.new", .shape = {0, 3}}});
  ExpectRefused(5, &into, "tensor empty.new: missing", {.convert_dtype = true});
}

TEST_F(LoadTest, MistakesInTheTargetAreListed) {
  VARVE_ASSERT_OK(Save(5, {}).status());
  TestTrainer into;
  float value = 0;
  into.state.tensors = {
      {{.name = ""}},
      {{.name = "null", .shape = {2}}},
      {{.name = "negative", .shape = {-1}}, &value},
      {{.name = "axes", .shape = {1, 1}}, &value, kHost, {1}},
      {{.name = "shared", .shape = {2}}, &value, kHost, {0}},
      {{.name = "dtype", .dtype = static_cast<DType>(99)}, &value},
      {{.name = "nibbles", .dtype = DType::kF4, .shape = {2, 2}}, &value, kHost, {4, 1}},
      {{.name = "twice"}, &value},
      {{.name = "twice"}, &value}};
  const Status status = Load(5, &into, {.strictness = Strictness::kIgnoreAll}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const char* text :
       {"tensor  of the target: name", "null of the target: data is null, expected 8 bytes",
        "negative of the target: ", "axes of the target: 1 strides, expected 2",
        "shared of the target: a stride is 0", "dtype of the target: dtype 99 is unknown",
        "nibbles of the target: has strides, expected dense F4 [2, 2]",
        "tensor twice is in the state twice, expected once"}) {
    EXPECT_THAT(status.message(), ::testing::HasSubstr(text));
  }
  EXPECT_EQ(std::count(status.message().begin(), status.message().end(), '\n'), 8);
}

TEST_F(LoadTest, TensorInShardsIsRefused) {
  const TestTensor tensor = RandomTensor("wte", DType::kF32, {4}, 1);
  auto writer = store_->Begin(5).value();
  for (const uint32_t shard : {0, 1}) {
    TensorView view = tensor.view();
    view.shard = shard;
    VARVE_ASSERT_OK(writer->Put(view));
  }
  VARVE_ASSERT_OK(writer->Commit().status());
  TestTrainer into;
  into.Add({.name = "wte", .shape = {4}}, 2);
  ExpectRefused(5, &into, "tensor wte: is in shards without layouts, expected a whole tensor");
}

TEST_F(LoadTest, DroppedStepIsNotFound) {
  SaveState(5, MixedPrecisionTrainer(1).state);
  const auto reader = store_->OpenCheckpoint("main", 5).value();
  VARVE_ASSERT_OK(DropSteps({5}));
  TestTrainer into = MixedPrecisionTrainer(2);
  EXPECT_THAT(LoadState(*reader, {}, &into.state), FailsWith(StatusCode::kNotFound, "step 5"));
}

TEST_F(LoadTest, DamagedChunkIsNamedWithItsTensor) {
  expect_damage_ = true;
  TestTrainer saved;
  saved.Add({.name = "model.wte", .dtype = DType::kU8, .shape = {3 << 20}}, 1);
  SaveState(5, saved.state);
  store_.reset();
  for (const auto& entry : std::filesystem::directory_iterator(path() / "db")) {
    if (entry.path().extension() != ".sst" || entry.file_size() < (2u << 20)) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1'500'000);
    file.write("damage", 6);
  }
  store_ = Store::Open(path()).value();
  TestTrainer into;
  into.Add({.name = "model.wte", .dtype = DType::kU8, .shape = {3 << 20}}, 2);
  EXPECT_THAT(Load(5, &into), FailsWith(StatusCode::kCorruption, "tensor model.wte at step 5"));
  EXPECT_EQ(into.state.trainer.global_step, 0);
}

}  // namespace
}  // namespace varve::internal::testing
