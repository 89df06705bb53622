// SPDX-License-Identifier: Apache-2.0
//
// What is put in comes out: every type, every awkward size, shape, stride and name.
#include <algorithm>
#include <fstream>

#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

using RoundTripTest = StoreTest;

TEST_F(RoundTripTest, AllTypes) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    tensors.push_back(RandomTensor("t." + std::string(DTypeName(dtype)), dtype, {24, 40}, 100 + i));
  }
  VARVE_ASSERT_OK(Save(1, tensors).status());
  ExpectHolds(1, tensors);
}

TEST_F(RoundTripTest, SizesAroundChunkBoundaries) {
  std::vector<TestTensor> tensors;
  for (const int64_t n : {262143, 262144, 262145, 524288, 786433}) {
    tensors.push_back(RandomTensor("bf16." + std::to_string(n), DType::kBF16, {n}, n));
  }
  for (const int64_t n : {(1 << 20) - 1, 1 << 20, (1 << 20) + 1}) {
    tensors.push_back(RandomTensor("u8." + std::to_string(n), DType::kU8, {n}, n));
  }
  for (const int64_t n : {63, 64, 65, 66}) {
    tensors.push_back(RandomTensor("inline." + std::to_string(n), DType::kU8, {n}, n));
  }
  VARVE_ASSERT_OK(Save(1, tensors).status());
  ExpectHolds(1, tensors);
}

TEST_F(RoundTripTest, NoAxesAndNoElements) {
  const std::vector<TestTensor> tensors = {RandomTensor("scalar", DType::kF32, {}, 1),
                                           RandomTensor("empty", DType::kF32, {0}, 2),
                                           RandomTensor("flat", DType::kBF16, {5, 0, 7}, 3)};
  VARVE_ASSERT_OK(Save(1, tensors).status());
  ExpectHolds(1, tensors);
  VARVE_ASSERT_OK(Save(2, {}).status());
  ExpectHolds(2, {});
}

TEST_F(RoundTripTest, Names) {
  std::vector<TestTensor> tensors;
  for (const char* name : {"a b", "a/b/c", "..", "größe", "重み.0", "x_1", "x_10", "\x01"}) {
    tensors.push_back(RandomTensor(name, DType::kU8, {100}, tensors.size()));
  }
  tensors.push_back(RandomTensor(std::string(kMaxNameBytes, 'n'), DType::kU8, {9}, 77));
  VARVE_ASSERT_OK(Save(1, tensors).status());
  ExpectHolds(1, tensors);
}

TEST_F(RoundTripTest, BadInputLeavesTheWriterUsable) {
  auto writer = store_->Begin(1).value();
  const TestTensor good = RandomTensor("good", DType::kU8, {100}, 1);
  const auto put = [&](TensorView view) { return writer->Put(view); };
  TensorView view = good.view();
  view.name = "";
  EXPECT_THAT(put(view), FailsWith(StatusCode::kInvalidArgument, "tensor name"));
  view.name = std::string_view("a\0b", 3);
  EXPECT_THAT(put(view), FailsWith(StatusCode::kInvalidArgument, "NUL"));
  view.name = "\xff";
  EXPECT_THAT(put(view), FailsWith(StatusCode::kInvalidArgument, "UTF-8"));
  const std::string long_name(kMaxNameBytes + 1, 'n');
  view.name = long_name;
  EXPECT_THAT(put(view), FailsWith(StatusCode::kInvalidArgument, "1025"));
  view = good.view();
  view.dtype = static_cast<DType>(99);
  EXPECT_THAT(put(view), FailsWith(StatusCode::kInvalidArgument, "99"));
  view = good.view();
  const std::vector<int64_t> negative = {-1}, huge = {INT64_MAX, 4}, one_stride = {1};
  view.shape = negative;
  EXPECT_THAT(put(view), FailsWith(StatusCode::kInvalidArgument, "good"));
  view.shape = huge;
  EXPECT_THAT(put(view), FailsWith(StatusCode::kInvalidArgument, "good"));
  view = good.view();
  view.data = nullptr;
  EXPECT_THAT(put(view), FailsWith(StatusCode::kInvalidArgument, "null"));
  view = good.view();
  const std::vector<int64_t> two = {10, 10};
  view.shape = two;
  view.strides = one_stride;
  EXPECT_THAT(put(view), FailsWith(StatusCode::kInvalidArgument, "strides"));
  VARVE_ASSERT_OK(put(good.view()));
  EXPECT_THAT(put(good.view()), FailsWith(StatusCode::kInvalidArgument, "twice"));
  VARVE_ASSERT_OK(writer->Commit().status());
  ExpectHolds(1, {good});
  EXPECT_THAT(writer->Commit(), FailsWith(StatusCode::kFailedPrecondition, "committed"));
  EXPECT_THAT(put(good.view()), FailsWith(StatusCode::kFailedPrecondition, "committed"));
}

// Strided views against a plain loop over their indices.
struct StridedCase {
  const char* name;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t first;  // element of the buffer
};

class StrideTest : public StoreTest, public ::testing::WithParamInterface<StridedCase> {};

TEST_P(StrideTest, ReadsAsItsIndicesSay) {
  const StridedCase& c = GetParam();
  const TestTensor buffer = RandomTensor("buffer", DType::kF32, {int64_t{700} * 800}, 5);
  TestTensor expected{"t", DType::kF32, c.shape, {}, {}};
  std::vector<int64_t> index(c.shape.size(), 0);
  const int64_t n = NumElements(c.shape).value();
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i, at = c.first;
    for (size_t axis = c.shape.size(); axis-- > 0;) {
      at += rest % c.shape[axis] * c.strides[axis];
      rest /= c.shape[axis];
    }
    const auto* from = buffer.bytes.data() + 4 * at;
    expected.bytes.insert(expected.bytes.end(), from, from + 4);
  }
  auto writer = store_->Begin(1).value();
  VARVE_ASSERT_OK(writer->Put({.name = "t",
                               .dtype = DType::kF32,
                               .shape = c.shape,
                               .data = buffer.bytes.data() + 4 * c.first,
                               .strides = c.strides}));
  VARVE_ASSERT_OK(writer->Commit().status());
  ExpectHolds(1, {expected});
}

INSTANTIATE_TEST_SUITE_P(Layouts, StrideTest,
                         ::testing::Values(StridedCase{"Transposed", {800, 700}, {1, 800}, 0},
                                           StridedCase{"Part", {600, 500}, {800, 1}, 803},
                                           StridedCase{"EveryThird", {1000}, {3}, 7},
                                           StridedCase{
                                               "Reversed", {700, 800}, {-800, -1}, 700 * 800 - 1},
                                           StridedCase{"Broadcast", {600, 700}, {0, 1}, 11},
                                           StridedCase{"Permuted", {20, 700, 40}, {40, 800, 1}, 0}),
                         [](const auto& test) { return test.param.name; });

TEST_F(RoundTripTest, SlicesAreThoseOfTheIndices) {
  const TestTensor t = RandomTensor("t", DType::kU16, {300, 7, 400}, 9);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    std::vector<Range> slice;
    for (const int64_t d : t.shape) {
      std::uniform_int_distribution<int64_t> pick(0, d);
      int64_t a = pick(random), b = pick(random);
      if (round % 3 == 0) a = 0, b = d;  // whole axes make long runs
      slice.push_back({std::min(a, b), std::max(a, b)});
    }
    if (round % 2 == 0) slice[0] = {round, round + 1};
    std::vector<std::byte> expected;
    for (int64_t i = slice[0].begin; i < slice[0].end; ++i) {
      for (int64_t j = slice[1].begin; j < slice[1].end; ++j) {
        const auto* row = t.bytes.data() + 2 * ((i * 7 + j) * 400);
        expected.insert(expected.end(), row + 2 * slice[2].begin, row + 2 * slice[2].end);
      }
    }
    std::vector<std::byte> out(expected.size());
    VARVE_ASSERT_OK(reader->ReadSlice("t", slice, out));
    EXPECT_TRUE(out == expected) << "round " << round;
  }
  std::vector<std::byte> out(10);
  const std::vector<Range> outside = {{0, 301}, {0, 7}, {0, 400}};
  EXPECT_THAT(reader->ReadSlice("t", outside, out),
              FailsWith(StatusCode::kInvalidArgument, "axis 0"));
  EXPECT_THAT(reader->Read("t", out), FailsWith(StatusCode::kInvalidArgument, "10 bytes"));
  EXPECT_THAT(reader->Read("u", out), FailsWith(StatusCode::kNotFound, "step 1 of run main"));
}

TEST_F(RoundTripTest, StateItemsMetricsAndTags) {
  TrainerProgress state;
  state.global_step = 7;
  state.consumed_samples = 1234567890123;
  state.last_loss = 0.1 + 0.2;
  state.best_metric = -0.0;
  state.lr_scheduler["lr"] = 6.816106962100066e-05;
  state.lr_scheduler["kind"] = std::string("cosine");
  state.lr_scheduler["milestones"] = std::vector<double>{1, 2.5, -0.0};
  state.lr_scheduler["step"] = int64_t{-3};
  state.rng.push_back({.rank = 3, .generator = "cpu", .state = {1, 2, 0, 255}});
  state.extra["empty"] = std::string();
  Topology topology{.dp = 2, .tp = 4, .zero_stage = 1, .world_size = 8};
  const std::string item = std::string("pickled\0bytes", 13);
  auto writer = store_->Begin(5).value();
  VARVE_ASSERT_OK(writer->SetTrainerProgress(state));
  VARVE_ASSERT_OK(writer->SetTopology(topology));
  VARVE_ASSERT_OK(writer->PutBytes("loader", std::as_bytes(std::span(item))));
  VARVE_ASSERT_OK(writer->PutBytes("nothing", {}));
  EXPECT_THAT(writer->PutBytes("loader", {}), FailsWith(StatusCode::kInvalidArgument, "twice"));
  VARVE_ASSERT_OK(writer->SetMetric("loss", 2.0655102729797363));
  VARVE_ASSERT_OK(writer->AddTag("golden"));
  for (const char* tag : {"latest", "12", "a@b", "a:b", "a b", ""}) {
    EXPECT_THAT(writer->AddTag(tag), FailsWith(StatusCode::kInvalidArgument, "tag")) << tag;
  }
  VARVE_ASSERT_OK(writer->Commit().status());
  Reopen();
  const auto reader = store_->OpenCheckpoint("main", 5).value();
  const TrainerProgress read = reader->ReadTrainerProgress().value().value();
  EXPECT_EQ(read.consumed_samples, state.consumed_samples);
  EXPECT_EQ(read.last_loss, state.last_loss);
  EXPECT_TRUE(std::signbit(read.best_metric));
  EXPECT_EQ(read.lr_scheduler, state.lr_scheduler);
  EXPECT_EQ(read.extra, state.extra);
  ASSERT_EQ(read.rng.size(), 1u);
  EXPECT_EQ(read.rng[0].state, state.rng[0].state);
  EXPECT_EQ(reader->ReadTopology().value()->tp, 4u);
  EXPECT_THAT(reader->ListBytes().value(), ::testing::ElementsAre("loader", "nothing"));
  const auto bytes = reader->ReadBytes("loader").value();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), item);
  EXPECT_THAT(reader->ReadBytes("other"), FailsWith(StatusCode::kNotFound, "other"));
  EXPECT_EQ(reader->info().metrics.at("loss"), 2.0655102729797363);
  EXPECT_THAT(reader->info().tags, ::testing::ElementsAre("golden"));
  EXPECT_EQ(store_->FindTag("main", "golden").value(), 5u);
  VARVE_ASSERT_OK(DropSteps({5}));
  EXPECT_THAT(store_->FindTag("main", "golden"), FailsWith(StatusCode::kNotFound, "golden"));
}

// A block of a hundred frames is read once, not once for each.
TEST_F(RoundTripTest, SmallFramesShareTheReadOfTheirBlock) {
  const auto bytes_read = [] {  // by calls of this process
    std::ifstream io("/proc/self/io");
    std::string key;
    uint64_t bytes = 0;
    io >> key >> bytes;
    return bytes;
  };
  std::vector<TestTensor> tensors;
  for (uint64_t i = 0; i < 1000; ++i) {
    tensors.push_back(RandomTensor("t" + std::to_string(i), DType::kF32, {32}, i));
  }
  VARVE_ASSERT_OK(Save(1, tensors).status());
  Reopen();
  std::vector<std::byte> out(128 * tensors.size());
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto part = std::span(out).subspan(128 * i, 128);
    requests.push_back(ReadRequest::Tensor(tensors[i].name, part));
  }
  const auto reader = store_->OpenCheckpoint("main", 1).value();
  const uint64_t before = bytes_read();
  VARVE_ASSERT_OK(reader->ReadMany(requests));
  EXPECT_LE(bytes_read() - before, uint64_t{2} << 20);  // each its own block: 16 MB
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(std::span(out).subspan(128 * i, 128), tensors[i].bytes)) << i;
  }
}

}  // namespace
}  // namespace varve::internal::testing
