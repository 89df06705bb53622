// SPDX-License-Identifier: Apache-2.0
//
// The log of a tensor and the difference of two checkpoints.
#include "varve/history.h"

#include <cmath>
#include <limits>
#include <map>

#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::IsEmpty;
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
  EXPECT_EQ(diff->changed[2].values->num_elements, values.size());
  EXPECT_EQ(diff->changed[2].values->changed_elements, 2);
  EXPECT_EQ(diff->changed[2].values->max_abs, 1);
  EXPECT_DOUBLE_EQ(diff->changed[2].values->relative_norm, std::sqrt(1.25) / 5);
}

}  // namespace

}  // namespace varve::internal
