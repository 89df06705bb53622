// SPDX-License-Identifier: Apache-2.0
//
// Random saves, replacements, drops and reclaims, compared with a map that does the same in memory.
#include <map>

#include "codec/predict/rounded_copy.h"
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

using StepName = std::pair<std::string, uint64_t>;
using Tensors = std::vector<TestTensor>;

class ModelTest : public InternalsTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  uint64_t Below(uint64_t n) { return random_() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  std::string AnyRun() { return OneIn(3) ? "side" : "main"; }

  // A trainer's state: weights that drift, their copy, a tied tensor, bytes, a constant, a scalar.
  // Each save changes some of it, now and then it jumps back, and sometimes a part is left out.
  Tensors NextState() {
    TestTensor& weights = state_[0];
    if (OneIn(5) && !model_.empty()) {
      weights = std::next(model_.begin(), static_cast<ptrdiff_t>(Below(model_.size())))->second[0];
    } else if (!OneIn(4)) {
      weights = Drifted(weights, random_());
    }
    if (OneIn(2)) state_[1] = RandomTensor("bytes", DType::kU8, {70000}, Below(3));
    if (OneIn(3)) state_[2].bytes.assign(4000, static_cast<std::byte>(Below(2)));
    state_[3] = RandomTensor("scalar", DType::kF64, {}, Below(4));
    Tensors tensors = state_;
    TestTensor tied = weights;
    tied.name = OneIn(2) ? "a.tied" : "z.tied";
    tensors.push_back(std::move(tied));
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      if (OneIn(3)) continue;
      TestTensor copy{OneIn(2) ? "b.copy" : "y.copy", dtype, weights.shape, {}, "weights"};
      copy.name += DTypeName(dtype);
      copy.bytes.resize(weights.bytes.size() / 2);
      MakeRoundedCopy(dtype, weights.bytes, copy.bytes);
      if (OneIn(4)) copy.bytes[Below(copy.bytes.size())] ^= std::byte{1};
      tensors.push_back(std::move(copy));
    }
    return tensors;
  }

  void DoSave() {
    const StepName id{AnyRun(), Below(12)};
    SaveOptions options{.run = id.first, .verify_sharing = OneIn(4)};
    if (model_.contains(id)) options.on_existing = OnExisting::kReplace;
    if (OneIn(3)) {  // any step of the run as the parent
      for (const auto& [other, ignored] : model_) {
        if (other.first == id.first && OneIn(2)) options.parent = other.second;
      }
    }
    Tensors tensors = NextState();
    VARVE_ASSERT_OK(Save(id.second, tensors, options).status());
    model_[id] = std::move(tensors);
  }

  void DoDrop() {
    std::vector<CheckpointId> ids;
    for (const auto& [id, ignored] : model_) {
      if (OneIn(3)) ids.push_back({id.first, id.second});
    }
    VARVE_ASSERT_OK(store_->Drop(ids, {.reclaim = !OneIn(3)}).status());
    for (const CheckpointId& id : ids) model_.erase({id.run, id.step});
  }

  void DoSomething() {
    switch (Below(12)) {
      case 0:
        return Reopen({.compression = static_cast<Compression>(Below(4)),
                       .max_delta_depth = static_cast<int>(1 + Below(8))});
      case 1:
        VARVE_ASSERT_OK(store_->Reclaim({.all = OneIn(2)}).status());
        return;
      case 2:
      case 3:
        return DoDrop();
      case 4: {
        auto writer = store_->Begin(100, {.run = AnyRun()}).value();
        VARVE_ASSERT_OK(writer->Put(state_[0].view()));
        return;  // abandoned
      }
      default:
        return DoSave();
    }
  }

  void ExpectModel() {
    for (const auto& [id, tensors] : model_) ExpectHolds(*store_, id.second, tensors, id.first);
    EXPECT_EQ(GetStats().num_steps, model_.size());
    ExpectSound();
  }

  std::mt19937_64 random_{GetParam()};
  std::map<StepName, Tensors> model_;
  Tensors state_ = {
      NormalTensor("weights", {9000}, 1), RandomTensor("bytes", DType::kU8, {70000}, 0),
      RandomTensor("constant", DType::kI32, {1000}, 0), RandomTensor("scalar", DType::kF64, {}, 0)};
};

TEST_P(ModelTest, TheStoreHoldsWhatTheMapHolds) {
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE("operation " + std::to_string(i));
    ASSERT_NO_FATAL_FAILURE(DoSomething());
    if (i % 10 == 9) {
      ASSERT_NO_FATAL_FAILURE(ExpectModel());
    }
    if (HasFailure()) return;
  }
  std::vector<CheckpointId> all;
  for (const auto& [id, ignored] : model_) all.push_back({id.first, id.second});
  std::shuffle(all.begin(), all.end(), random_);
  for (const CheckpointId& id : all) VARVE_ASSERT_OK(store_->Drop({&id, 1}).status());
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  ExpectNoKeys();
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModelTest, ::testing::Range(uint64_t{1}, uint64_t{9}));

}  // namespace
}  // namespace varve::internal::testing
