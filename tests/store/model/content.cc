// SPDX-License-Identifier: Apache-2.0
#include "tests/store/model/content.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <span>
#include <vector>

#include "base/util.h"
#include "codec/predict/rounded_copy.h"
#include "tests/store/save/optimizer_training.h"
#include "tests/support/step_content.h"

namespace varve::internal::testing {
namespace {

constexpr ContentPlan kPlan = {
    .seed = 20, .num_tensors = 7, .max_tensor_bytes = 20000, .period = 3};
constexpr size_t kMaster = 3;  // the one that drifts
constexpr std::string_view kItem = "loader";
constexpr size_t kWideBytes = (size_t{2} << 20) + 1000;  // three chunks

using Tensor = MadeTensor;

// Before or after its master by name, of either type.
Tensor MakeCopy(const MadeTensor& master, uint8_t content) {
  Tensor copy;
  copy.name = content % 2 == 0 ? "a copy" : "z copy";
  copy.dtype = content % 3 == 0 ? DType::kF16 : DType::kBF16;
  copy.shape = master.shape;
  copy.bytes.resize(master.bytes.size() / 2);
  copy.derived_from = master.name;
  MakeRoundedCopy(copy.dtype, master.bytes, copy.bytes);
  if (content % 8 == 7)
    copy.bytes[content % copy.bytes.size()] ^= std::byte{1};  // it is a copy no more
  return copy;
}

// The chunk in the middle is constant, and the others change one at a time.
Tensor MakeWide(uint8_t content) {
  Tensor wide;
  wide.name = "wide";
  wide.shape = {static_cast<int64_t>(kWideBytes)};
  wide.bytes.resize(kWideBytes);
  for (size_t i = 0; i < 1000; ++i) {
    wide.bytes[i] = static_cast<std::byte>(Mix(content / 32, i));
    wide.bytes[kWideBytes - 1 - i] = static_cast<std::byte>(Mix(content / 16, i, 1));
  }
  return wide;
}

std::vector<Tensor> MakeTensors(uint8_t content) {
  std::vector<Tensor> tensors;
  std::vector<MadeTensor> made = MakeContent(kPlan, content);
  if (content % 4 != 1) tensors.push_back(MakeCopy(made[kMaster], content));
  if (content % 16 == 15) tensors.push_back(MakeWide(content));
  if (content % 16 == 9) made.resize(2);  // a part of them, with a hint to what is not there
  for (Tensor& each : made) tensors.push_back(std::move(each));
  return tensors;
}

struct TrainedStep {
  std::vector<Tensor> tensors;
  std::shared_ptr<const OptimizerStep> hint;
};

// Copies come after their masters in every other step, and before them in the others.
TrainedStep NextStepOf(Training* training) {
  TrainedStep step;
  step.hint = training->Next();
  for (const TestTensor& each : training->states.back()) {
    step.tensors.push_back({each.name, each.dtype, each.shape, each.bytes, each.derived_from});
  }
  if (step.hint->number % 2 == 1) std::ranges::reverse(step.tensors);
  return step;
}

std::vector<TrainedStep> MakeTrained() {
  constexpr size_t kTrainedElements = 1500;
  std::vector<Training> trainings = {Training(kTrainedElements, /*has_bf16=*/false, /*num=*/2)};
  std::vector<TrainedStep> steps;
  for (size_t i = 0; i < kNumTrainings; ++i) {
    Training training = trainings[i];
    for (size_t done = 1; done <= kStepsOfTraining; ++done) {
      steps.push_back(NextStepOf(&training));
      const bool one_leaves = done % kStepsUntilOneLeaves == 0 && trainings.size() < kNumTrainings;
      if (i > 0 || !one_leaves) continue;
      trainings.push_back(training);
      trainings.back().seed = 500 * trainings.size();
      trainings.back().is_bf16 = trainings.size() == kNumTrainings;
    }
  }
  return steps;
}

const TrainedStep& TrainedStepOf(uint8_t trained) {
  static const std::vector<TrainedStep> steps = MakeTrained();
  return steps[size_t{trained} - kFirstTrained];
}

const std::vector<Tensor>& TensorsOf(uint8_t content) {
  if (content >= kFirstTrained) return TrainedStepOf(content).tensors;
  static std::mutex mutex;
  static std::array<std::vector<Tensor>, kNumContents> all;
  const std::lock_guard lock(mutex);
  std::vector<Tensor>& tensors = all[content];
  if (tensors.empty()) tensors = MakeTensors(content);
  return tensors;
}

std::string ItemOf(uint8_t content) { return std::string(content * 7, static_cast<char>(content)); }

Topology TopologyOf(uint8_t content) {
  Topology topology;
  topology.dp = topology.world_size = 1u + content % 4;
  return topology;
}

Status Differs(const std::string& what) { return Status::Corruption(what + " differs"); }

Status CompareTensor(const CheckpointReader& reader, const Tensor& tensor) {
  VARVE_ASSIGN_OR_RETURN(const TensorInfo info, reader.Find(tensor.name));
  if (info.dtype != tensor.dtype || info.shape != tensor.shape ||
      info.derived_from != tensor.derived_from) {
    return Differs("what is said of tensor " + tensor.name);
  }
  std::vector<std::byte> bytes(info.logical_bytes);
  VARVE_RETURN_IF_ERROR(reader.Read(tensor.name, bytes));
  return SameBytes(bytes, tensor.bytes) ? Status::Ok() : Differs("tensor " + tensor.name);
}

// Reads all tensors in one call, in which chunks that need each other are decoded together.
Status CompareTogether(const CheckpointReader& reader, const std::vector<Tensor>& tensors) {
  std::vector<std::vector<std::byte>> out(tensors.size());
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < tensors.size(); ++i) {
    out[i].resize(tensors[i].bytes.size());
    requests.push_back(ReadRequest::Tensor(tensors[i].name, out[i]));
  }
  VARVE_RETURN_IF_ERROR(reader.ReadMany(requests));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (out[i] != tensors[i].bytes) return Differs("tensor " + tensors[i].name + ", read together");
  }
  return Status::Ok();
}

Status CompareState(uint8_t content, const CheckpointReader& reader) {
  VARVE_ASSIGN_OR_RETURN(const auto items, reader.ListBytes());
  if (items != std::vector<std::string>{std::string(kItem)}) return Differs("the list of items");
  VARVE_ASSIGN_OR_RETURN(const auto item, reader.ReadBytes(kItem));
  if (AsString(item) != ItemOf(content)) return Differs("the item");
  VARVE_ASSIGN_OR_RETURN(const auto progress, reader.ReadTrainerProgress());
  if (!progress.has_value() || progress->global_step != content) return Differs("the progress");
  VARVE_ASSIGN_OR_RETURN(const auto topology, reader.ReadTopology());
  if (topology != TopologyOf(content)) return Differs("the topology");
  return Status::Ok();
}

}  // namespace

uint8_t NextTrained(uint8_t content, uint8_t way) {
  const auto first_of = [](int training) {
    return static_cast<uint8_t>(kFirstTrained + training * kStepsOfTraining);
  };
  if (content < kFirstTrained) return first_of(way % kNumTrainings);
  const int training = (content - kFirstTrained) / kStepsOfTraining;
  const int done = (content - kFirstTrained) % kStepsOfTraining + 1;
  const int leaving = done % kStepsUntilOneLeaves == 0 ? done / kStepsUntilOneLeaves : 0;
  const bool one_leaves = training == 0 && leaving > 0 && leaving < kNumTrainings;
  if (one_leaves && way % 2 == 1) return first_of(leaving);
  return done == kStepsOfTraining ? first_of(0) : static_cast<uint8_t>(content + 1);
}

std::shared_ptr<const OptimizerStep> HintOf(uint8_t trained) { return TrainedStepOf(trained).hint; }

uint64_t BytesOfContent(uint8_t content) {
  uint64_t bytes = 0;
  for (const Tensor& tensor : TensorsOf(content)) bytes += tensor.bytes.size();
  return bytes;
}

std::string SizeOfContent(uint8_t content) {
  return std::to_string(TensorsOf(content).size()) + " tensors, " +
         std::to_string(BytesOfContent(content)) + " bytes";
}

Status PutContent(uint8_t content, CheckpointWriter* writer) {
  for (const Tensor& tensor : TensorsOf(content)) {
    VARVE_RETURN_IF_ERROR(writer->Put({.name = tensor.name,
                                       .dtype = tensor.dtype,
                                       .shape = tensor.shape,
                                       .data = tensor.bytes.data(),
                                       .derived_from = tensor.derived_from}));
  }
  VARVE_RETURN_IF_ERROR(writer->PutBytes(kItem, AsBytes(ItemOf(content))));
  TrainerProgress progress;
  progress.global_step = content;
  VARVE_RETURN_IF_ERROR(writer->SetTrainerProgress(progress));
  return writer->SetTopology(TopologyOf(content));
}

Status CompareContent(uint8_t content, const CheckpointReader& reader) {
  VARVE_ASSIGN_OR_RETURN(const auto list, reader.List());
  if (list.size() != TensorsOf(content).size()) return Differs("the number of tensors");
  for (const Tensor& tensor : TensorsOf(content)) {
    VARVE_RETURN_IF_ERROR(CompareTensor(reader, tensor));
  }
  if (content >= kFirstTrained) {
    VARVE_RETURN_IF_ERROR(CompareTogether(reader, TensorsOf(content)));
  }
  return CompareState(content, reader);
}

}  // namespace varve::internal::testing
