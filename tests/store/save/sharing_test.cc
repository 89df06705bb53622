// SPDX-License-Identifier: Apache-2.0
//
// What is equal is stored once, and lives exactly as long as something names it.
#include "codec/predict/rounded_copy.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

class SharingTest : public StoreTest {
 protected:
  bool HasDeltas() {
    const std::vector<CodecUse> uses = GetStats().by_codec;
    return std::any_of(uses.begin(), uses.end(), [](const CodecUse& use) {
      return use.codec.find("delta") != std::string::npos;
    });
  }
};

TestTensor RoundedCopy(const TestTensor& source, std::string name) {
  TestTensor copy{std::move(name), DType::kBF16, source.shape, {}, source.name};
  copy.bytes.resize(source.bytes.size() / 2);
  MakeRoundedCopy(DType::kBF16, source.bytes, copy.bytes);
  return copy;
}

TEST_F(SharingTest, UnchangedStepStoresNothing) {
  const std::vector<TestTensor> tensors = {NormalTensor("a", {600000}, 1),
                                           NormalTensor("b", {1000}, 2)};
  const SaveReport first = Save(1, tensors).value();
  EXPECT_EQ(first.new_bytes, first.logical_bytes);
  const SaveReport second = Save(2, tensors).value();
  EXPECT_EQ(second.new_bytes, 0u);
  EXPECT_EQ(second.stored_bytes, 0u);
  VARVE_ASSERT_OK(DropSteps({1}));
  ExpectHolds(2, tensors);
  EXPECT_EQ(GetStats().pending_bytes, 0u);
  VARVE_ASSERT_OK(DropSteps({2}));
  ExpectEmpty();
}

TEST_F(SharingTest, OnlyTheChangedChunkIsNew) {
  TestTensor t = RandomTensor("t", DType::kF32, {int64_t{5} * 262144}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  const TestTensor old = t;
  t.bytes[2 * 1048576 + 17] ^= std::byte{1};
  const SaveReport report = Save(2, {t}).value();
  EXPECT_EQ(report.new_bytes, uint64_t{1} << 20);
  ExpectHolds(1, {old});
  ExpectHolds(2, {t});
  VARVE_ASSERT_OK(DropSteps({1}));
  ExpectHolds(2, {t});
}

TEST_F(SharingTest, TiedTensorsAndOtherRunsShare) {
  const TestTensor wte = RandomTensor("wte", DType::kBF16, {300000}, 1);
  TestTensor lm_head = wte;
  lm_head.name = "lm_head";
  const SaveReport report = Save(1, {wte, lm_head}).value();
  EXPECT_EQ(report.logical_bytes, 1200000u);
  EXPECT_EQ(report.new_bytes, 600000u);
  const SaveReport other = Save(9, {lm_head}, {.run = "other"}).value();
  EXPECT_EQ(other.new_bytes, 0u);
  VARVE_ASSERT_OK(DropSteps({1}));
  ExpectHolds(*store_, 9, {lm_head}, "other");
}

TEST_F(SharingTest, ConstantAndInlineChunksTakeNoFrame) {
  TestTensor zero{"zero", DType::kF32, {400000}, std::vector<std::byte>(1600000), {}};
  TestTensor tiny = RandomTensor("tiny", DType::kF32, {16}, 3);
  TestTensor seven{"seven", DType::kF64, {300000}, {}, {}};
  const double value = 7.25;
  seven.bytes.resize(2400000);
  for (size_t i = 0; i < 300000; ++i) std::memcpy(&seven.bytes[8 * i], &value, 8);
  EXPECT_EQ(Save(1, {zero, tiny, seven}).value().new_bytes, 0u);
  ExpectHolds(1, {zero, tiny, seven});
  EXPECT_EQ(GetStats().num_chunks, 0u);
}

TEST_F(SharingTest, DerivedTensorCostsNothingAndOutlivesItsSource) {
  TestTensor master = NormalTensor("master", {262144 + 777}, 1);
  const TestTensor model = RoundedCopy(master, "model");
  EXPECT_EQ(Save(1, {model, master}).value().new_bytes, master.bytes.size());
  ExpectHolds(1, {model, master});
  // The copy stays as it is, the source changes below the copy's precision.
  master.bytes[0] ^= std::byte{1};
  ASSERT_TRUE(RoundedCopy(master, "model").bytes == model.bytes);
  VARVE_ASSERT_OK(Save(2, {model, master}).status());
  VARVE_ASSERT_OK(DropSteps({1}));
  ExpectHolds(2, {model, master});
  const auto reader = store_->OpenCheckpoint("main", 2).value();
  const std::vector<Range> slice = {{262000, 262300}};
  std::vector<std::byte> out(600);
  VARVE_ASSERT_OK(reader->ReadSlice("model", slice, out));
  EXPECT_TRUE(std::equal(out.begin(), out.end(), model.bytes.begin() + ptrdiff_t{2} * 262000));
  VARVE_ASSERT_OK(DropSteps({2}));
  ExpectEmpty();
}

// Read in one call, a copy is made from its source where that is at hand.
TEST_F(SharingTest, DerivedTensorIsReadWithItsSourceWholeOrInPart) {
  const int64_t n = 2 * 262144 + 777;
  const TestTensor master = NormalTensor("master", {n}, 1);
  const TestTensor model = RoundedCopy(master, "model");
  VARVE_ASSERT_OK(Save(1, {model, master}).status());
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  // Reads the first chunk of both, the second of both, but only a part of the source's, and the
  // third of one.
  const std::vector<Range> model_part = {{0, int64_t{2} * 262144}};
  const std::vector<Range> master_part = {{0, 262144 + 100}};
  const std::vector<Range> model_rest = {{int64_t{2} * 262144, n}};
  std::vector<std::byte> a(size_t{4} * 262144), b(size_t{4} * (262144 + 100)), c(size_t{2} * 777);
  const std::vector<ReadRequest> requests = {ReadRequest::Tensor("model", a, model_part),
                                             ReadRequest::Tensor("master", b, master_part),
                                             ReadRequest::Tensor("model", c, model_rest)};
  VARVE_ASSERT_OK(reader->ReadMany(requests));
  EXPECT_TRUE(std::equal(a.begin(), a.end(), model.bytes.begin()));
  EXPECT_TRUE(std::equal(b.begin(), b.end(), master.bytes.begin()));
  EXPECT_TRUE(std::equal(c.begin(), c.end(), model.bytes.end() - ptrdiff_t{2} * 777));
}

TEST_F(SharingTest, WrongHintIsHarmless) {
  const TestTensor master = NormalTensor("master", {300000}, 1);
  TestTensor model = RoundedCopy(master, "model");
  model.bytes[1000] ^= std::byte{1};
  TestTensor nothing = RandomTensor("nothing", DType::kBF16, {100}, 4);
  nothing.derived_from = "missing";
  VARVE_ASSERT_OK(Save(1, {model, nothing, master}).status());
  ExpectHolds(1, {model, nothing, master});
}

// A walk of small steps, so that every step is a delta of the one before.
std::vector<TestTensor> Walk(int steps) {
  std::vector<TestTensor> walk = {NormalTensor("w", {300000}, 1)};
  std::mt19937 random(2);
  for (int i = 1; i < steps; ++i) {
    walk.push_back(walk.back());
    for (size_t at = 0; at < walk[0].bytes.size(); at += 4) {
      uint32_t bits;
      std::memcpy(&bits, &walk.back().bytes[at], 4);
      bits += static_cast<uint32_t>(random() % 64);
      std::memcpy(&walk.back().bytes[at], &bits, 4);
    }
  }
  return walk;
}

TEST_F(SharingTest, BasesLiveAsLongAsTheirDeltas) {
  const std::vector<TestTensor> walk = Walk(14);
  for (size_t i = 0; i < walk.size(); ++i) VARVE_ASSERT_OK(Save(i, {walk[i]}).status());
  EXPECT_TRUE(HasDeltas());
  for (size_t i = 0; i < walk.size(); ++i) ExpectHolds(i, {walk[i]});
  // Goes from the front, so that only references of frames keep the bases.
  for (size_t i = 0; i + 1 < walk.size(); ++i) {
    VARVE_ASSERT_OK(DropSteps({i}));
    ExpectHolds(walk.size() - 1, {walk.back()});
    const auto check = store_->Check({.read_data = true}).value();
    ASSERT_THAT(check.errors, ::testing::IsEmpty());
  }
  VARVE_ASSERT_OK(DropSteps({walk.size() - 1}));
  ExpectEmpty();
}

// The last step has only the copies: it alone keeps the sources, which are deltas, and their bases.
TEST_F(SharingTest, CopyOfADeltaOutlivesItsSourceAndTheBase) {
  const std::vector<TestTensor> walk = Walk(3);
  std::vector<TestTensor> copies;
  for (size_t i = 0; i < walk.size(); ++i) {
    copies.push_back(RoundedCopy(walk[i], "copy"));
    copies[i].derived_from = "w";
    VARVE_ASSERT_OK(Save(i, {walk[i], copies[i]}).status());
  }
  const TestTensor& copy = copies.back();
  EXPECT_EQ(Save(3, {copy}).value().new_bytes, 0u);
  VARVE_ASSERT_OK(DropSteps({0, 1, 2}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  EXPECT_TRUE(HasDeltas());
  ExpectHolds(3, {copy});
  const auto reader = store_->OpenCheckpoint("main", 3).value();
  for (const Range range : {Range{0, 1}, Range{262143, 262145}, Range{299990, 300000}}) {
    std::vector<std::byte> out(2 * static_cast<size_t>(range.end - range.begin));
    VARVE_ASSERT_OK(reader->ReadSlice("copy", std::span(&range, 1), out));
    EXPECT_TRUE(std::equal(out.begin(), out.end(), copy.bytes.begin() + 2 * range.begin));
  }
  VARVE_ASSERT_OK(DropSteps({3}));
  ExpectEmpty();
}

TEST_F(SharingTest, DroppedStepSavedAgainWhileItsChunksLiveOn) {
  const TestTensor a = RandomTensor("t", DType::kU8, {3 << 20}, 1);
  TestTensor b = a;
  b.bytes[5] ^= std::byte{1};
  VARVE_ASSERT_OK(Save(1, {a}).status());
  VARVE_ASSERT_OK(Save(2, {b}).status());
  VARVE_ASSERT_OK(DropSteps({1}));
  const TestTensor c = RandomTensor("t", DType::kU8, {3 << 20}, 2);
  VARVE_ASSERT_OK(Save(1, {c}).status());
  ExpectHolds(1, {c});
  ExpectHolds(2, {b});
  VARVE_ASSERT_OK(DropSteps({2}));
  ExpectHolds(1, {c});
}

TEST_F(SharingTest, ExistingStepIsRefusedOrReplaced) {
  const TestTensor a = NormalTensor("t", {300000}, 1), b = NormalTensor("t", {300000}, 2);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  EXPECT_THAT(Save(1, {b}), FailsWith(StatusCode::kAlreadyExists,
                                      "step 1 of run main exists already; save another step"));
  VARVE_ASSERT_OK(Save(1, {b}, {.on_existing = OnExisting::kReplace}).status());
  ExpectHolds(1, {b});
  VARVE_ASSERT_OK(Save(1, {b}, {.on_existing = OnExisting::kReplace}).status());
  ExpectHolds(1, {b});
  VARVE_ASSERT_OK(DropSteps({1}));
  ExpectEmpty();
}

TEST_F(SharingTest, ForeignDataIsComparedByteForByte) {
  const TestTensor a = RandomTensor("t", DType::kU8, {1 << 20}, 1);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  EXPECT_EQ(Save(2, {a}, {.verify_sharing = true}).value().new_bytes, 0u);
}

TEST_F(SharingTest, KnownChunkThatDiesBeforeTheCommitComesBackToLife) {
  const TestTensor a = RandomTensor("a", DType::kU8, {1 << 20}, 1);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  VARVE_ASSERT_OK(DropSteps({1}, {.reclaim = false}));
  VARVE_ASSERT_OK(Save(2, {a}).status());  // whether its frame was found or written anew
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  ExpectHolds(2, {a});
}

}  // namespace
}  // namespace varve::internal::testing
