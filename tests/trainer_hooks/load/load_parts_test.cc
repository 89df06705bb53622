// SPDX-License-Identifier: Apache-2.0
//
// Loads of parts, and under other names.
#include "tests/trainer_hooks/state_fixture.h"
#include "trainer_hooks/load/convert.h"

namespace varve::internal::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class LoadPartsTest : public StateTest {
 protected:
  // The master holds the values of the weight, and no low bits.
  static void ExpectMasterOf(const TestTrainer& trainer, const std::string& name) {
    const std::vector<std::byte> weight = trainer.Bytes("model." + name);
    std::vector<std::byte> widened(2 * weight.size());
    Convert(DType::kBF16, weight, DType::kF32, widened);
    EXPECT_EQ(trainer.Bytes("master." + name), widened) << name;
  }
};

// Combination 1 of 4: saved with optimizer state, loaded with it.
TEST_F(LoadPartsTest, OptimizerSavedAndLoaded) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  ExpectLoads(5, saved, &into);
}

// Combination 2: saved with it, not loaded. The masters follow the weights, the moments stay.
TEST_F(LoadPartsTest, OptimizerSavedNotLoaded) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  const auto report = Load(5, &into, {.optimizer = false});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(SameTensors(saved, into),
              UnorderedElementsAre("model.wte", "model.h.0.w", "model.h.0.lora", "model.bias",
                                   "model.mask"));
  for (const char* name : {"wte", "h.0.w", "h.0.lora", "bias"}) ExpectMasterOf(into, name);
  EXPECT_EQ(SameTensors(MixedPrecisionTrainer(2), into).size(), 8u);  // the moments
  EXPECT_THAT(report->made,
              UnorderedElementsAre("master.wte", "master.h.0.w", "master.h.0.lora", "master.bias"));
  EXPECT_THAT(report->missing, IsEmpty());
  EXPECT_THAT(report->unexpected, IsEmpty());
  EXPECT_EQ(report->num_tensors, 9u);
}

// Combination 2 again: the target has none.
TEST_F(LoadPartsTest, TargetWithoutOptimizer) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  for (const char* prefix : {"master.", "exp_avg"}) into.Remove(prefix);
  ExpectRefused(5, &into, "tensor exp_avg.bias: unexpected F32 [4]");
  ExpectLoads(5, saved, &into, {.optimizer = false});
}

// Combination 3: saved without, loaded into a trainer that has it.
TEST_F(LoadPartsTest, OptimizerNotSaved) {
  TestTrainer saved = MixedPrecisionTrainer(1);
  for (const char* prefix : {"master.", "exp_avg"}) saved.Remove(prefix);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  ExpectRefused(5, &into, "tensor exp_avg.bias: missing in the checkpoint, expected F32 [4]");
  const auto report = Load(5, &into, {.optimizer = false});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(SameTensors(saved, into).size(), 5u);
  EXPECT_EQ(SameTensors(MixedPrecisionTrainer(2), into).size(), 8u);
  ExpectMasterOf(into, "wte");
}

// Combination 4: neither has any, as SGD.
TEST_F(LoadPartsTest, SgdHasNoState) {
  TestTrainer saved;
  saved.Add({.name = "w", .shape = {4}, .role = TensorRole::kParameter}, 1);
  SaveState(5, saved.state);
  for (const bool optimizer : {true, false}) {
    TestTrainer into;
    into.Add({.name = "w", .shape = {4}, .role = TensorRole::kParameter}, 2);
    ExpectLoads(5, saved, &into, {.optimizer = optimizer});
  }
}

TEST_F(LoadPartsTest, WeightsOnlyLeaveTheRestUntouched) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  VARVE_ASSERT_OK(Load(5, &into, {.optimizer = false, .trainer_state = false}).status());
  EXPECT_EQ(into.Bytes("model.wte"), saved.Bytes("model.wte"));
  EXPECT_EQ(into.state.trainer.global_step, 2);
  EXPECT_EQ(std::get<double>(into.state.trainer.lr_scheduler["last_lr"]), 0.2);
  EXPECT_EQ(into.state.items[1].value, BytesOf(std::vector<uint64_t>{3}));
}

TEST_F(LoadPartsTest, ScheduleOfTheTargetMayStay) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  ExpectLoads(5, saved, &into, {.lr_scheduler = false});
  EXPECT_EQ(into.state.trainer.global_step, 1);
  EXPECT_EQ(std::get<double>(into.state.trainer.lr_scheduler["last_lr"]), 0.2);
  ExpectLoads(5, saved, &into);
  EXPECT_EQ(std::get<double>(into.state.trainer.lr_scheduler["last_lr"]), 0.1);
}

TEST_F(LoadPartsTest, AdaptersOnly) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  LoadOptions options{.include = {"*.lora"}, .exclude = {"exp_avg_sq.*"}};
  const auto report = Load(5, &into, options);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->num_tensors, 3u);
  EXPECT_THAT(SameTensors(saved, into),
              UnorderedElementsAre("model.h.0.lora", "master.h.0.lora", "exp_avg.h.0.lora"));
  EXPECT_EQ(SameTensors(MixedPrecisionTrainer(2), into).size(), 14u);
}

// A tensor that the globs leave out may be in only one of the two.
TEST_F(LoadPartsTest, LeftOutIsNeitherMissingNorUnexpected) {
  TestTrainer saved = MixedPrecisionTrainer(1);
  saved.Remove("model.bias");
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  into.Remove("exp_avg");
  const auto report = Load(5, &into, {.exclude = {"exp_avg*", "*.bias"}});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->num_tensors, 7u);
}

// Else the next step of the optimizer would undo the load.
TEST_F(LoadPartsTest, MasterThatIsLeftOutFollowsItsWeight) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  const auto report = Load(5, &into, {.include = {"model.*.lora"}});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->made, ElementsAre("master.h.0.lora"));
  ExpectMasterOf(into, "h.0.lora");
  EXPECT_EQ(SameTensors(MixedPrecisionTrainer(2), into).size(), 15u);
}

TEST_F(LoadPartsTest, NamesOfTheCheckpointAreMapped) {
  TestTrainer saved;
  saved.Add({.name = "x_1", .shape = {3}}, 1);
  saved.Add({.name = "x_1_moment1_0", .shape = {3}}, 1);
  saved.Add({.name = "x_10", .shape = {3}}, 1);
  saved.Add({.name = "e.0.w", .shape = {3}}, 1);
  saved.Add({.name = "e.1.w", .shape = {3}}, 1);
  SaveState(5, saved.state);
  LoadOptions options;
  VARVE_ASSERT_OK(options.rename.AddPair("x_1", "wte"));
  VARVE_ASSERT_OK(options.rename.AddRegex("x_1_moment1_0", "exp_avg.wte"));
  VARVE_ASSERT_OK(options.rename.AddPair("e.0", "e.1"));
  VARVE_ASSERT_OK(options.rename.AddPair("e.1", "e.0"));
  TestTrainer into;
  for (const char* name : {"wte", "exp_avg.wte", "x_10", "e.0.w", "e.1.w"}) {
    into.Add({.name = name, .shape = {3}}, 2);
  }
  VARVE_ASSERT_OK(Load(5, &into, options).status());
  EXPECT_EQ(into.Bytes("wte"), saved.Bytes("x_1"));
  EXPECT_EQ(into.Bytes("exp_avg.wte"), saved.Bytes("x_1_moment1_0"));
  EXPECT_EQ(into.Bytes("x_10"), saved.Bytes("x_10"));
  EXPECT_EQ(into.Bytes("e.0.w"), saved.Bytes("e.1.w"));
  EXPECT_EQ(into.Bytes("e.1.w"), saved.Bytes("e.0.w"));
  // Messages say both names.
  into.Get("wte").dtype = DType::kI32;
  ExpectRefused(5, &into, "tensor wte (x_1 in the checkpoint): dtype F32, expected I32", options);
}

TEST_F(LoadPartsTest, TwoNamesThatBecomeOneAreRefused) {
  TestTrainer saved;
  saved.Add({.name = "a", .shape = {3}}, 1);
  saved.Add({.name = "b", .shape = {3}}, 1);
  SaveState(5, saved.state);
  LoadOptions options;
  VARVE_ASSERT_OK(options.rename.AddPair("a", "b"));
  TestTrainer into;
  into.Add({.name = "b", .shape = {3}}, 2);
  ExpectRefused(5, &into, "tensor b: both a and b of the checkpoint get this name", options);
}

// A renamed master still makes its weight.
TEST_F(LoadPartsTest, PartnersAreMappedToo) {
  TestTrainer saved = MixedPrecisionTrainer(1);
  saved.Remove("master.");
  SaveState(5, saved.state);
  LoadOptions options;
  VARVE_ASSERT_OK(options.rename.AddPair("model", "net"));
  VARVE_ASSERT_OK(options.rename.AddPair("master", "fp32"));
  TestTrainer into = MixedPrecisionTrainer(2);
  for (StateTensor& tensor : into.state.tensors) {
    if (tensor.name.starts_with("model.")) tensor.name.replace(0, 5, "net");
    if (tensor.name.starts_with("master.")) tensor.name.replace(0, 6, "fp32");
    tensor.derived_from.clear();  // the checkpoint knows
  }
  const auto report = Load(5, &into, options);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->made, Contains("fp32.wte"));
  EXPECT_EQ(report->made.size(), 4u);
  const TestTrainer original = MixedPrecisionTrainer(1);
  EXPECT_EQ(into.Bytes("net.wte"), original.Bytes("model.wte"));
}

}  // namespace
}  // namespace varve::internal::testing
