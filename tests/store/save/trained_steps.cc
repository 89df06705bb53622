// SPDX-License-Identifier: Apache-2.0
#include "tests/store/save/trained_steps.h"

#include <algorithm>
#include <random>
#include <utility>

#include "tests/store/save/optimizer_training.h"

namespace varve::internal::testing {
namespace {

constexpr char kTrainedRun[] = "trained";

TestTensor NoiseOf(uint64_t step, size_t bytes) {
  TestTensor noise{"noise", DType::kU8, {static_cast<int64_t>(bytes)}, {}, {}};
  noise.bytes = RandomBytes(bytes, step);
  return noise;
}

}  // namespace

Status SaveTestTensors(Store* store, uint64_t step, const std::vector<TestTensor>& tensors,
                       const SaveOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const auto writer, store->Begin(step, options));
  for (const TestTensor& tensor : tensors) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
  return writer->Commit().status();
}

Result<bool> HasReplays(const Store& store) {
  VARVE_ASSIGN_OR_RETURN(const StoreStats stats, store.Stats());
  return std::ranges::any_of(stats.by_codec,
                             [](const CodecUse& use) { return use.codec == "replay"; });
}

TrainedSteps::TrainedSteps(size_t elements, size_t num_steps) {
  Training training(elements);
  for (size_t i = 0; i < num_steps; ++i) {
    Step& step = steps_.emplace_back();
    Training other = training;
    other.seed = 500;
    other.Next();
    step.hint = training.Next();
    step.tensors = training.states.back();
    step.others = other.states.back();
    for (auto* const tensors : {&step.tensors, &step.others}) {
      tensors->push_back(NoiseOf(step.hint->number, 20 * elements));
    }
  }
}

CheckpointId TrainedSteps::IdOf(size_t i) const { return {kTrainedRun, steps_[i].hint->number}; }

Status TrainedSteps::Save(Store* store, size_t i, const SaveOptions& options) const {
  SaveOptions hinted = options;
  hinted.run = kTrainedRun;
  hinted.optimizer_step = steps_[i].hint;
  return SaveTestTensors(store, IdOf(i).step, TensorsOf(i), hinted);
}

Status TrainedSteps::Replace(Store* store, size_t i) const {
  return SaveTestTensors(store, IdOf(i).step, OtherTensorsOf(i),
                         {.run = kTrainedRun,
                          .on_existing = OnExisting::kReplace,
                          .parent = IdOf(i - 1).step,
                          .optimizer_step = steps_[i].hint});
}

}  // namespace varve::internal::testing
