// SPDX-License-Identifier: Apache-2.0
//
// The log of a tensor and the difference of two checkpoints.
#include "varve/history.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "store/ops/history.h"
#include "tests/store/internals.h"

namespace varve::internal {

namespace {

using testing::Drifted;
using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::IsEmpty;
using testing::NormalTensor;
using testing::RandomTensor;
using testing::TestTensor;

constexpr int64_t kChunk = 262144;  // elements of an fp32 chunk

TestTensor Floats(std::string name, const std::vector<float>& values) {
  TestTensor tensor{std::move(name), DType::kF32, {static_cast<int64_t>(values.size())}, {}, {}};
  tensor.bytes.resize(4 * values.size());
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

using HistoryTest = testing::StoreTest;

TEST_F(HistoryTest, LogNamesTheStepsThatChangedATensor) {
  TestTensor w = RandomTensor("w", DType::kF32, {3 * kChunk}, 1);
  const TestTensor other = RandomTensor("other", DType::kF32, {1000}, 2);
  VARVE_ASSERT_OK(Save(1, {w, other}).status());
  VARVE_ASSERT_OK(Save(2, {w, RandomTensor("other", DType::kF32, {1000}, 3)}).status());
  w.bytes[4 * kChunk + 5] ^= std::byte{1};  // the second chunk
  VARVE_ASSERT_OK(Save(3, {w}).status());
  VARVE_ASSERT_OK(Save(4, {other}).status());  // without it
  VARVE_ASSERT_OK(Save(5, {w}).status());      // as it was
  w = RandomTensor("w", DType::kF32, {kChunk}, 4);
  VARVE_ASSERT_OK(Save(6, {w}).status());  // reshaped

  const auto log = store_->Log("main", "w");
  ASSERT_TRUE(log.ok()) << log.status().ToString();
  ASSERT_EQ(log->size(), 3);
  EXPECT_EQ((*log)[0].step, 1);
  EXPECT_EQ((*log)[0].changed_chunks, 3);
  EXPECT_EQ((*log)[0].changed_bytes, 12 * kChunk);
  EXPECT_GT((*log)[0].stored_bytes, 12 * kChunk);  // random bytes do not shrink
  EXPECT_EQ((*log)[1].step, 3);
  EXPECT_EQ((*log)[1].changed_chunks, 1);
  EXPECT_EQ((*log)[1].num_chunks, 3);
  EXPECT_GT((*log)[1].stored_bytes, 0);
  EXPECT_EQ((*log)[2].step, 6);
  EXPECT_EQ((*log)[2].num_chunks, 1);

  // Together with what each save reports.
  EXPECT_EQ((*log)[1].stored_bytes, (*store_->ListCheckpoints("main"))[2].stored_bytes);
  EXPECT_THAT(store_->Log("main", "none"), FailsWith(StatusCode::kNotFound, "no tensor none"));
  EXPECT_THAT(store_->Log("none", "w"), FailsWith(StatusCode::kNotFound, "no run none"));
}

TEST_F(HistoryTest, DiffSortsTensorsByWhatBecameOfThem) {
  TestTensor w = RandomTensor("w", DType::kF32, {2 * kChunk + 7}, 1);
  const TestTensor same = RandomTensor("same", DType::kBF16, {kChunk}, 2);
  VARVE_ASSERT_OK(
      Save(1, {w, same, Floats("gone", {1}), RandomTensor("shape", DType::kU8, {4, 100}, 3)})
          .status());
  w.bytes.back() ^= std::byte{1};  // the last, short chunk
  VARVE_ASSERT_OK(
      Save(2, {w, same, Floats("new", {1}), RandomTensor("shape", DType::kU8, {8, 50}, 3)})
          .status());
  const auto diff = store_->Diff({"main", 1}, {"main", 2});
  ASSERT_TRUE(diff.ok()) << diff.status().ToString();
  EXPECT_THAT(diff->added, ElementsAre("new"));
  EXPECT_THAT(diff->removed, ElementsAre("gone"));
  EXPECT_THAT(diff->unchanged, ElementsAre("same"));
  ASSERT_EQ(diff->changed.size(), 2);
  EXPECT_EQ(diff->changed[0].name, "shape");
  EXPECT_TRUE(diff->changed[0].reshaped);
  EXPECT_EQ(diff->changed[0].changed_chunks, 1);
  EXPECT_EQ(diff->changed[1].name, "w");
  EXPECT_EQ(diff->changed[1].num_chunks, 3);
  EXPECT_EQ(diff->changed[1].changed_chunks, 1);
  EXPECT_EQ(diff->changed[1].changed_bytes, 7 * 4);
  EXPECT_FALSE(diff->changed[1].values.has_value());

  const auto only_w = store_->Diff({"main", 1}, {"main", 2},
                                   {.include = [](std::string_view name) { return name == "w"; }});
  EXPECT_EQ(only_w->changed.size(), 1);
  EXPECT_THAT(only_w->added, IsEmpty());
  EXPECT_THAT(store_->Diff({"main", 1}, {"main", 9}), FailsWith(StatusCode::kNotFound, "step 9"));
}

TEST_F(HistoryTest, DiffFindsWhatOnlyOneHasFirstLastAndBetween) {
  const auto save = [&](uint64_t step, const std::vector<std::string>& names) {
    std::vector<TestTensor> tensors;
    for (const std::string& name : names) tensors.push_back(Floats(name, {1}));
    VARVE_ASSERT_OK(Save(step, tensors).status());
  };
  save(1, {"a", "b", "b.c", "z"});
  save(2, {"b", "b.c", "b0", "zz"});
  const auto diff = store_->Diff({"main", 1}, {"main", 2});
  EXPECT_THAT(diff->removed, ElementsAre("a", "z"));
  EXPECT_THAT(diff->added, ElementsAre("b0", "zz"));
  EXPECT_THAT(diff->unchanged, ElementsAre("b", "b.c"));
  EXPECT_THAT(diff->changed, IsEmpty());
}

// Numbers have gaps. Some exist only before, or only after.
TEST_F(HistoryTest, ShardsAreComparedWithThoseOfTheirNumber) {
  const auto save = [&](uint64_t step, const std::map<uint32_t, float>& shards) {
    std::vector<TestTensor> tensors;
    for (const auto& [number, value] : shards) tensors.push_back(Floats("w", {value}));
    const auto writer = store_->Begin(step).value();
    size_t i = 0;
    for (const auto& [number, value] : shards) {
      TensorView view = tensors[i++].view();
      view.shard = number;
      VARVE_ASSERT_OK(writer->Put(view));
    }
    VARVE_ASSERT_OK(writer->Commit().status());
  };
  save(1, {{1, 1}, {4, 4}, {6, 6}, {9, 9}});
  save(2, {{0, 0}, {1, 1}, {4, 5}, {9, 9}, {12, 12}});
  const auto diff = store_->Diff({"main", 1}, {"main", 2});
  ASSERT_TRUE(diff.ok()) << diff.status().ToString();
  std::vector<std::pair<uint32_t, bool>> changed;
  for (const TensorDiff& shard : diff->changed) changed.emplace_back(shard.shard, shard.reshaped);
  EXPECT_THAT(changed, ElementsAre(std::pair(0u, true), std::pair(4u, false), std::pair(12u, true),
                                   std::pair(6u, true)));
  const auto log = store_->Log("main", "w");
  ASSERT_TRUE(log.ok()) << log.status().ToString();
  ASSERT_EQ(log->size(), 2u);
  EXPECT_EQ((*log)[1].num_chunks, 5u);
  EXPECT_EQ((*log)[1].changed_chunks, 3u);  // 0, 4 and 12
}

TEST_F(HistoryTest, DiffComparesValues) {
  std::vector<float> values(static_cast<size_t>(kChunk) + 4, 0.0f);
  values[0] = 3;
  values[static_cast<size_t>(kChunk)] = 4;  // in the second chunk, which stays: ||a|| = 5
  TestTensor complex = Floats("c", {1, 2, 3, 4});
  complex.dtype = DType::kC64;
  complex.shape = {2};
  VARVE_ASSERT_OK(
      Save(1, {Floats("w", values), complex, Floats("n", {1, NAN, INFINITY})}).status());
  values[0] = 2.5f;
  values[1] = -0.0f;  // other bytes, equal value
  values[2] = 1;
  const float imaginary = 5;
  std::memcpy(&complex.bytes[12], &imaginary, 4);
  VARVE_ASSERT_OK(
      Save(2, {Floats("w", values), complex, Floats("n", {NAN, NAN, INFINITY})}).status());
  const auto diff = store_->Diff({"main", 1}, {"main", 2}, {.values = true});
  ASSERT_TRUE(diff.ok()) << diff.status().ToString();
  ASSERT_EQ(diff->changed.size(), 3);
  EXPECT_EQ(diff->changed[0].name, "c");
  EXPECT_EQ(diff->changed[0].values->num_elements, 2);
  EXPECT_EQ(diff->changed[0].values->changed_elements, 1);
  EXPECT_EQ(diff->changed[0].values->max_abs, 1);
  EXPECT_EQ(diff->changed[1].values->changed_elements, 1);  // NaN for 1. NaN and infinity stay
  EXPECT_EQ(diff->changed[1].values->max_abs, INFINITY);
  EXPECT_EQ(diff->changed[1].values->new_nans, 1);
  EXPECT_EQ(diff->changed[2].values->new_nans, 0);
  EXPECT_EQ(diff->changed[2].values->num_elements, values.size());
  EXPECT_EQ(diff->changed[2].values->changed_elements, 2);
  EXPECT_EQ(diff->changed[2].values->max_abs, 1);
  EXPECT_DOUBLE_EQ(diff->changed[2].values->relative_norm, std::sqrt(1.25) / 5);
}

// Chunks of both sides are predicted from each other, or from one chunk, or are equal.
TEST_F(HistoryTest, DiffComparesValuesOfDeltas) {
  constexpr int64_t kCount = 2 * kChunk + 1001;
  constexpr uint64_t kLast = 12;  // longer than a chain
  const TestTensor tensor = NormalTensor("w", {kCount}, 7);
  std::vector<float> now(static_cast<size_t>(kCount));
  std::memcpy(now.data(), tensor.bytes.data(), tensor.bytes.size());
  std::vector<std::vector<float>> steps;
  for (uint64_t step = 1; step <= kLast; ++step) {
    for (size_t i = 0; i < kChunk; ++i) now[i] += 1e-4f;
    for (size_t i = 2 * kChunk; i < now.size(); i += 7) now[i] *= 1.5f;
    VARVE_ASSERT_OK(Save(step, {Floats("w", now)}).status());
    steps.push_back(now);
  }
  for (const auto& [from, to] :
       std::vector<std::pair<uint64_t, uint64_t>>{{1, 2}, {7, 8}, {8, 9}, {9, 12}, {12, 1}}) {
    const std::vector<float>& a = steps[from - 1];
    const std::vector<float>& b = steps[to - 1];
    double squares = 0, squares_of_difference = 0, max_abs = 0;
    uint64_t changed = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double difference = std::abs(static_cast<double>(b[i]) - a[i]);
      squares += static_cast<double>(a[i]) * a[i];
      squares_of_difference += difference * difference;
      max_abs = std::max(max_abs, difference);
      if (a[i] != b[i]) ++changed;
    }
    const auto diff = store_->Diff({"main", from}, {"main", to}, {.values = true});
    ASSERT_TRUE(diff.ok()) << diff.status().ToString();
    ASSERT_EQ(diff->changed.size(), 1u);
    EXPECT_EQ(diff->changed[0].changed_chunks, 2u);
    const ValueDiff& values = *diff->changed[0].values;
    EXPECT_EQ(values.num_elements, a.size());
    EXPECT_EQ(values.changed_elements, changed);
    EXPECT_EQ(values.max_abs, max_abs);
    EXPECT_NEAR(values.relative_norm, std::sqrt(squares_of_difference / squares),
                1e-12 * values.relative_norm);
  }
}

// A step of keyframes, and one of their deltas.
class DeltasTest : public testing::InternalsTest {
 protected:
  void SetUp() override {
    InternalsTest::SetUp();
    VARVE_ASSERT_OK(Save(1, {weights_}).status());
    VARVE_ASSERT_OK(Save(2, {later_}).status());
    before_ = impl()->ReadList(RecordOf(1), 0).value()[0];
    after_ = impl()->ReadList(RecordOf(2), 0).value()[0];
  }

  TensorRecord RecordOf(uint64_t step) {
    return DecodeTensorRecord(Value(Family::kTensors, keys::Tensor({1, step}, "weights", 0)))
        .value();
  }
  Result<CheckpointDiff> Diff() { return store_->Diff({"main", 1}, {"main", 2}, {.values = true}); }

  const TestTensor weights_ = NormalTensor("weights", {5000}, 1);
  const TestTensor later_ = Drifted(weights_, 2);
  ChunkRef before_;
  ChunkRef after_;
};

TEST_F(DeltasTest, AKeyframeAndItsDeltaAreReadTogether) {
  ASSERT_EQ(after_.predictor, Predictor::kDelta);
  std::vector<std::byte> before(before_.raw_bytes), after(after_.raw_bytes);
  const std::array refs = {&before_, &after_};
  const std::array<std::span<std::byte>, 2> out = {before, after};
  ChunkScratch scratch;
  VARVE_ASSERT_OK(impl()->chunk_reader().ReadTogether(refs, out, &scratch));
  EXPECT_TRUE(before == weights_.bytes);
  EXPECT_TRUE(after == later_.bytes);
}

TEST_F(DeltasTest, DiffSaysWhichChunkIsLost) {
  expect_damage_ = true;
  VARVE_ASSERT_OK(Diff().status());
  for (const ChunkRef& lost : {after_, before_}) {
    const std::string key = keys::Chunk(lost.address);
    const std::string value = Value(Family::kChunks, key);
    Change(Family::kChunks, key, std::nullopt);
    EXPECT_THAT(Diff(), FailsWith(StatusCode::kCorruption, "tensor weights: reading " +
                                                               FrameName(lost.address) +
                                                               ": it is missing"));
    Change(Family::kChunks, key, value);
  }
  VARVE_ASSERT_OK(Diff().status());
}

// Another store, whose digests have another seed.
class TwoStoresTest : public testing::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    auto store = Store::Create(folder_.path() / "other");
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    other_ = *std::move(store);
  }

  static void SaveIn(Store* store, uint64_t step, const std::vector<TensorView>& views) {
    const auto writer = store->Begin(step).value();
    for (const TensorView& view : views) VARVE_ASSERT_OK(writer->Put(view));
    VARVE_ASSERT_OK(writer->Commit().status());
  }
  // Step 1 of the store, and step 2 of it or of the other one.
  Result<CheckpointDiff> Diff(const Store& later, const DiffOptions& options) const {
    VARVE_ASSIGN_OR_RETURN(const auto a, ShardedReader::Open(*store_, "main", 1));
    VARVE_ASSIGN_OR_RETURN(const auto b, ShardedReader::Open(later, "main", 2));
    return DiffCheckpoints(*a, *b, options);
  }

  std::unique_ptr<Store> other_;
};

TEST_F(TwoStoresTest, DiffIsThatOfOneStore) {
  // 20 chunks are more than are read at once.
  TestTensor large = RandomTensor("large", DType::kU8, {int64_t{20} * 4 * kChunk + 5}, 1);
  TestTensor nibbles = RandomTensor("nibbles", DType::kF4, {4 * kChunk}, 2);
  TestTensor values = NormalTensor("values", {2, kChunk}, 3);
  TestTensor scalar = Floats("scalar", {1});
  scalar.shape = {};
  TestTensor none = RandomTensor("none", DType::kF32, {0, 3}, 4);
  TestTensor same = NormalTensor("same", {kChunk + 1}, 5);
  TestTensor shaped = RandomTensor("shaped", DType::kU8, {4, 100}, 6);
  std::vector<TestTensor> shards;
  for (uint64_t i = 0; i < 4; ++i) shards.push_back(RandomTensor("shards", DType::kI16, {9}, i));
  const auto views = [&](const std::vector<uint32_t>& numbers) {
    std::vector<TensorView> all;
    for (const TestTensor* tensor : {&large, &nibbles, &values, &scalar, &none, &same, &shaped}) {
      all.push_back(tensor->view());
    }
    for (const uint32_t number : numbers) {
      all.push_back(shards[number].view());
      all.back().shard = number;
    }
    return all;
  };
  SaveIn(store_.get(), 1, views({0, 1, 2}));
  for (const size_t chunk : {0, 15, 16, 19, 20}) large.bytes[chunk * 4 * kChunk] ^= std::byte{1};
  nibbles.bytes.back() ^= std::byte{1};
  values.bytes[3] ^= std::byte{0x80};
  scalar.bytes[0] ^= std::byte{1};
  shaped.shape = {8, 50};
  shards[1].bytes[0] ^= std::byte{1};
  SaveIn(store_.get(), 2, views({0, 1, 3}));
  SaveIn(other_.get(), 2, views({0, 1, 3}));

  for (const bool with_values : {false, true}) {
    const auto here = Diff(*store_, {.values = with_values});
    const auto there = Diff(*other_, {.values = with_values});
    ASSERT_TRUE(here.ok()) << here.status().ToString();
    ASSERT_TRUE(there.ok()) << there.status().ToString();
    EXPECT_THAT(there->unchanged, ElementsAre("none", "same"));
    EXPECT_EQ(there->unchanged, here->unchanged);
    ASSERT_EQ(there->changed.size(), here->changed.size());
    for (size_t i = 0; i < here->changed.size(); ++i) {
      const TensorDiff& a = here->changed[i];
      const TensorDiff& b = there->changed[i];
      EXPECT_EQ(std::tie(a.name, a.shard, a.reshaped, a.num_chunks),
                std::tie(b.name, b.shard, b.reshaped, b.num_chunks));
      EXPECT_EQ(std::tie(a.changed_chunks, a.changed_bytes),
                std::tie(b.changed_chunks, b.changed_bytes))
          << a.name;
      ASSERT_EQ(a.values.has_value(), b.values.has_value()) << a.name;
      if (!a.values) continue;
      EXPECT_EQ(a.values->num_elements, b.values->num_elements) << a.name;
      EXPECT_EQ(a.values->changed_elements, b.values->changed_elements) << a.name;
      EXPECT_EQ(a.values->max_abs, b.values->max_abs) << a.name;
      EXPECT_EQ(a.values->relative_norm, b.values->relative_norm) << a.name;
    }
  }
}

// Parts of one tensor are compared as the tensor that they make, also when they are cut alike.
TEST_F(TwoStoresTest, DiffComparesWholeTensors) {
  TestTensor tensor = RandomTensor("w", DType::kU8, {4, 100}, 1);
  const auto save = [&](Store* store, uint64_t step, int64_t cut) {
    std::vector<ShardLayout> layouts;
    std::vector<TensorView> views;
    for (const Range rows : {Range{0, cut}, Range{cut, 4}}) {
      ShardLayout layout = ShardLayout::Whole({4, 100});
      layout.flat = {100 * rows.begin, 100 * rows.end};
      layouts.push_back(Canonical(layout));
    }
    std::vector<std::vector<int64_t>> shapes;
    for (const ShardLayout& layout : layouts) shapes.push_back(layout.LocalShape());
    for (size_t i = 0; i < 2; ++i) {
      TensorView view = tensor.view();
      view.shape = shapes[i];
      view.data = tensor.bytes.data() + (i == 0 ? 0 : 100 * cut);
      view.layout = &layouts[i];
      view.shard = static_cast<uint32_t>(i);
      views.push_back(view);
    }
    SaveIn(store, step, views);
  };
  save(store_.get(), 1, 1);
  for (const int64_t cut : {1, 2}) {
    VARVE_ASSERT_OK(Store::Create(folder_.path() / std::to_string(cut)).status());
    other_ = Store::Open(folder_.path() / std::to_string(cut)).value();
    save(other_.get(), 2, cut);
    const auto equal = Diff(*other_, {.values = true});
    ASSERT_TRUE(equal.ok()) << equal.status().ToString();
    EXPECT_THAT(equal->unchanged, ElementsAre("w"));
    EXPECT_THAT(equal->changed, IsEmpty());
    tensor.bytes[399] ^= std::byte{1};
    save(other_.get(), 3, cut);
    const auto a = ShardedReader::Open(*store_, "main", 1).value();
    const auto b = ShardedReader::Open(*other_, "main", 3).value();
    const auto diff = DiffCheckpoints(*a, *b, {.values = true});
    ASSERT_TRUE(diff.ok()) << diff.status().ToString();
    ASSERT_EQ(diff->changed.size(), 1u);
    EXPECT_EQ(diff->changed[0].values->changed_elements, 1u);
    tensor.bytes[399] ^= std::byte{1};
  }
}

}  // namespace

}  // namespace varve::internal
