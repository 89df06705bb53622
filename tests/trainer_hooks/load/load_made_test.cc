// SPDX-License-Identifier: Apache-2.0
//
// Loads in which the target's memory is not that of the checkpoint's tensors: tied, strided, of
// another dtype, or made from another tensor.
#include "tests/trainer_hooks/state_fixture.h"
#include "trainer_hooks/load/convert.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::byte> Converted(DType from, const std::vector<std::byte>& bytes, DType to) {
  std::vector<std::byte> result(bytes.size() * DTypeBits(to) / DTypeBits(from));
  Convert(from, bytes, to, result);
  return result;
}

class LoadMadeTest : public StateTest {
 protected:
  // wte and head: two names of one storage, or two storages.
  static TestTrainer Embedding(uint64_t seed, bool tied) {
    TestTrainer trainer;
    trainer.Add({.name = "wte", .shape = {8, 4}, .role = TensorRole::kParameter}, seed);
    if (tied) {
      trainer.Tie("head", "wte");
    } else {
      trainer.Add({.name = "head", .shape = {8, 4}, .role = TensorRole::kParameter}, seed);
    }
    return trainer;
  }
};

TEST_F(LoadMadeTest, TiedTensorsAreRestoredAsOne) {
  const TestTrainer saved = Embedding(1, true);
  SaveState(5, saved.state);
  TestTrainer into = Embedding(2, true);
  const auto report = Load(5, &into);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(into.Bytes("head"), saved.Bytes("wte"));
  EXPECT_EQ(report->num_tensors, 2u);
  EXPECT_EQ(report->bytes, 128u);  // read once
}

TEST_F(LoadMadeTest, EqualCopiesMayBecomeTied) {
  TestTrainer saved = Embedding(1, false);
  std::memcpy(saved.memory[1].data(), saved.memory[0].data(), 128);
  SaveState(5, saved.state);
  TestTrainer into = Embedding(2, true);
  ExpectLoads(5, saved, &into);
}

TEST_F(LoadMadeTest, DivergedCopiesDoNotFitATiedTarget) {
  SaveState(5, Embedding(1, false).state);
  TestTrainer into = Embedding(2, true);
  ExpectRefused(5, &into,
                "tensor head: tied to wte in the target, but their copies in the checkpoint (head, "
                "wte) have diverged");
}

// Copies that do not fit are not compared.
TEST_F(LoadMadeTest, OneOfTheCopiesMayNotFit) {
  TestTrainer saved = Embedding(1, false);
  saved.Get("head").shape = {4, 8};
  SaveState(5, saved.state);
  TestTrainer into = Embedding(2, true);
  EXPECT_EQ(Load(5, &into).status().message(),
            "step 5 of run main does not fit:\ntensor head: shape [4, 8], expected [8, 4]");
}

TEST_F(LoadMadeTest, DivergedCopiesAreKeptApart) {
  const TestTrainer saved = Embedding(1, false);
  SaveState(5, saved.state);
  TestTrainer into = Embedding(2, false);
  ExpectLoads(5, saved, &into);
  EXPECT_NE(into.Bytes("wte"), into.Bytes("head"));
}

TEST_F(LoadMadeTest, TiedCheckpointFillsUntiedTargets) {
  const TestTrainer saved = Embedding(1, true);
  SaveState(5, saved.state);
  TestTrainer into = Embedding(2, false);
  ExpectLoads(5, saved, &into);
}

TEST_F(LoadMadeTest, OneNameOfTiedTensorsIsEnough) {
  for (const std::string name : {"wte", "head"}) {
    TestTrainer saved = Embedding(1, true);
    saved.Remove(name);
    const uint64_t step = name.size();
    SaveState(step, saved.state);
    TestTrainer into = Embedding(2, true);
    const auto report = Load(step, &into);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(into.memory[0], saved.memory[0]);
    EXPECT_EQ(report->num_tensors, 2u);
    TestTrainer untied = Embedding(2, false);
    ExpectRefused(step, &untied, "tensor " + name + ": missing");
  }
}

// Only the bytes that the target gets are compared.
TEST_F(LoadMadeTest, CopiesAreComparedAsTheyAreLoaded) {
  TestTrainer saved = Embedding(1, true);
  saved.Remove("head");
  saved.Add({.name = "head", .dtype = DType::kBF16, .shape = {8, 4}},
            Converted(DType::kF32, saved.Bytes("wte"), DType::kBF16));
  SaveState(5, saved.state);
  TestTrainer into;
  into.Add({.name = "wte", .dtype = DType::kBF16, .shape = {8, 4}}, 2);
  into.Tie("head", "wte");
  const auto report = Load(5, &into, {.convert_dtype = true});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(into.Bytes("wte"), saved.Bytes("head"));
  EXPECT_THAT(report->converted, ElementsAre("wte: F32 to BF16"));
}

TEST_F(LoadMadeTest, DtypesAreConvertedWhereAsked) {
  TestTrainer saved;
  saved.Add({.name = "narrow", .shape = {5, 7}}, 1);
  saved.Add({.name = "wide", .dtype = DType::kF16, .shape = {5, 7}}, 1);
  saved.Add({.name = "same", .dtype = DType::kBF16, .shape = {5, 7}}, 1);
  SaveState(5, saved.state);
  TestTrainer into;
  into.Add({.name = "narrow", .dtype = DType::kBF16, .shape = {5, 7}}, 2);
  into.Add({.name = "wide", .shape = {5, 7}}, 2);
  into.Add({.name = "same", .dtype = DType::kBF16, .shape = {5, 7}}, 2);
  ExpectRefused(5, &into,
                "tensor narrow: dtype F32, expected BF16\ntensor wide: dtype F16, expected F32");
  const auto report = Load(5, &into, {.convert_dtype = true});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->converted, ElementsAre("narrow: F32 to BF16", "wide: F16 to F32"));
  EXPECT_EQ(into.Bytes("narrow"), Converted(DType::kF32, saved.Bytes("narrow"), DType::kBF16));
  EXPECT_EQ(into.Bytes("wide"), Converted(DType::kF16, saved.Bytes("wide"), DType::kF32));
  EXPECT_EQ(into.Bytes("same"), saved.Bytes("same"));
}

TEST_F(LoadMadeTest, OnlyFloatsAreConverted) {
  TestTrainer saved;
  saved.Add({.name = "ids", .dtype = DType::kI32, .shape = {4}}, 1);
  SaveState(5, saved.state);
  TestTrainer into;
  into.Add({.name = "ids", .shape = {4}}, 2);
  ExpectRefused(5, &into, "tensor ids: dtype I32, expected F32, which it cannot be converted to",
                {.convert_dtype = true});
}

// More than the scratch memory holds, in slices that end within rows.
TEST_F(LoadMadeTest, LargeTensorsAreConvertedInPieces) {
  TestTrainer saved;
  saved.Add({.name = "large", .dtype = DType::kBF16, .shape = {2, 9, 1'000'003}}, 1);
  saved.Add({.name = "more", .dtype = DType::kBF16, .shape = {17'000'000}}, 1);
  SaveState(5, saved.state);
  TestTrainer into;
  into.Add({.name = "large", .shape = {2, 9, 1'000'003}}, std::vector<std::byte>(72'000'216));
  into.Add({.name = "more", .shape = {17'000'000}}, std::vector<std::byte>(68'000'000));
  VARVE_ASSERT_OK(Load(5, &into, {.convert_dtype = true}).status());
  for (const char* name : {"large", "more"}) {
    EXPECT_TRUE(into.Bytes(name) == Converted(DType::kBF16, saved.Bytes(name), DType::kF32));
  }
}

// The target is columns of a matrix with gaps between. The gaps do not change.
TEST_F(LoadMadeTest, StridedTargetsAreFilledInPlace) {
  TestTrainer saved;
  saved.Add({.name = "t", .shape = {3, 2}}, BytesOf<float>({1, 2, 3, 4, 5, 6}));
  saved.Add({.name = "c", .dtype = DType::kBF16, .shape = {2}},
            BytesOf<uint16_t>({0x3F80, 0x4000}));
  SaveState(5, saved.state);
  std::vector<float> matrix(10, -1);
  std::vector<float> column(4, -1);
  TestTrainer into;
  into.state.tensors = {{{.name = "t", .shape = {3, 2}}, matrix.data(), kHost, {1, 5}},
                        {{.name = "c", .shape = {2}}, column.data() + 3, kHost, {-2}}};
  VARVE_ASSERT_OK(Load(5, &into, {.convert_dtype = true}).status());
  EXPECT_THAT(matrix, ElementsAre(1, 3, 5, -1, -1, 2, 4, 6, -1, -1));
  EXPECT_THAT(column, ElementsAre(-1, 2, -1, 1));
}

TEST_F(LoadMadeTest, LowBitsOfMastersAreKept) {
  const TestTrainer saved = MixedPrecisionTrainer(1);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  ExpectLoads(5, saved, &into);
  EXPECT_NE(into.Bytes("master.wte"),
            Converted(DType::kBF16, into.Bytes("model.wte"), DType::kF32));
}

TEST_F(LoadMadeTest, WeightsAreMadeFromMasters) {
  const TestTrainer original = MixedPrecisionTrainer(1);
  TestTrainer saved = MixedPrecisionTrainer(1);
  saved.Remove("model.");
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  into.Remove("model.mask");
  const auto report = Load(5, &into);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(SameTensors(original, into).size(), 16u);
  EXPECT_THAT(report->made,
              UnorderedElementsAre("model.wte", "model.h.0.w", "model.h.0.lora", "model.bias"));
  EXPECT_THAT(report->missing, IsEmpty());
}

// The masters need not be in the target. They were used, so they are not unexpected.
TEST_F(LoadMadeTest, WeightsAreMadeFromMastersThatAreNotLoaded) {
  const TestTrainer original = MixedPrecisionTrainer(1);
  TestTrainer saved = MixedPrecisionTrainer(1);
  for (const char* prefix : {"model.", "exp_avg"}) saved.Remove(prefix);
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  for (const char* prefix : {"model.mask", "master.", "exp_avg"}) into.Remove(prefix);
  for (const bool optimizer : {true, false}) {
    const auto report = Load(5, &into, {.optimizer = optimizer});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(SameTensors(into, original).size(), 4u);
    EXPECT_EQ(report->made.size(), 4u);
    EXPECT_THAT(report->unexpected, IsEmpty());
  }
}

TEST_F(LoadMadeTest, MastersAreMadeFromWeights) {
  TestTrainer saved = MixedPrecisionTrainer(1);
  saved.Remove("master.");
  SaveState(5, saved.state);
  TestTrainer into = MixedPrecisionTrainer(2);
  const auto report = Load(5, &into);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->made.size(), 4u);
  EXPECT_EQ(report->num_tensors, 17u);
  EXPECT_EQ(SameTensors(saved, into).size(), 13u);
  EXPECT_EQ(into.Bytes("master.wte"),
            Converted(DType::kBF16, saved.Bytes("model.wte"), DType::kF32));
}

TEST_F(LoadMadeTest, PartnerMustHaveTheShape) {
  TestTrainer saved;
  saved.Add({.name = "master.w", .shape = {2, 2}}, 1);
  saved.Add({.name = "master.v", .dtype = DType::kI32, .shape = {4}}, 1);
  SaveState(5, saved.state);
  TestTrainer into;
  for (const std::string name : {"w", "v"}) {
    into.Add({.name = name, .dtype = DType::kBF16, .shape = {4}, .derived_from = "master." + name},
             2);
  }
  ExpectRefused(5, &into,
                "tensor w: missing in the checkpoint, expected BF16 [4]; cannot be made from "
                "master.w, which is F32 [2, 2]\n"
                "tensor v: missing in the checkpoint, expected BF16 [4]; cannot be made from "
                "master.v, which is I32 [4]");
}

// Tied weights have one master or two. Both are filled, from strided memory, too.
TEST_F(LoadMadeTest, MastersOfTiedAndStridedWeightsFollow) {
  TestTrainer saved;
  saved.Add({.name = "w", .dtype = DType::kBF16, .shape = {2, 3}},
            BytesOf<uint16_t>({0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0}));
  SaveState(5, saved.state);
  std::vector<uint16_t> memory(6, 0xEEEE);
  TestTrainer into;
  into.Add({.name = "master", .shape = {2, 3}, .role = TensorRole::kOptimizer}, 2);
  into.Tie("master.v", "master");
  for (const char* name : {"w", "v", "u"}) {
    into.state.tensors.push_back({{.name = name,
                                   .dtype = DType::kBF16,
                                   .shape = {2, 3},
                                   .derived_from = name[0] == 'v' ? "master.v" : "master"},
                                  memory.data(),
                                  kHost,
                                  {1, 2}});
  }
  const auto report = Load(5, &into, {.optimizer = false});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(into.Values<float>("master"), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(memory, ElementsAre(0x3F80, 0x4080, 0x4000, 0x40A0, 0x4040, 0x40C0));
  EXPECT_THAT(report->made, ElementsAre("master", "master.v"));
  EXPECT_EQ(report->num_tensors, 5u);
  EXPECT_EQ(report->bytes, 36u);
}

TEST_F(LoadMadeTest, MasterOfAnotherShapeIsNone) {
  TestTrainer saved;
  saved.Add({.name = "w", .dtype = DType::kBF16, .shape = {4}}, 1);
  SaveState(5, saved.state);
  TestTrainer into;
  into.Add({.name = "w", .dtype = DType::kBF16, .shape = {4}, .derived_from = "m"}, 2);
  into.Add({.name = "m", .shape = {5}, .role = TensorRole::kOptimizer}, 2);
  ExpectRefused(5, &into,
                "tensor m of the target: is F32 [5], expected a master of w, which is BF16 [4]",
                {.optimizer = false});
}

}  // namespace
}  // namespace varve::internal::testing
