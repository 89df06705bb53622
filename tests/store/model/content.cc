// SPDX-License-Identifier: Apache-2.0
#include "tests/store/model/content.h"

#include <array>
#include <mutex>
#include <vector>

#include "base/util.h"
#include "codec/predict/rounded_copy.h"
#include "tests/support/step_content.h"

namespace varve::internal::testing {
namespace {

constexpr ContentPlan kPlan = {
    .seed = 20, .num_tensors = 7, .max_tensor_bytes = 20000, .period = 3};
constexpr size_t kMaster = 3;  // the one that drifts
constexpr std::string_view kItem = "loader";
constexpr size_t kWideBytes = (size_t{2} << 20) + 1000;  // three chunks

struct Tensor : MadeTensor {
  std::string derived_from;
};

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
  for (MadeTensor& each : made) tensors.push_back({{std::move(each)}, ""});
  return tensors;
}

const std::vector<Tensor>& TensorsOf(uint8_t content) {
  static std::mutex mutex;
  static std::array<std::vector<Tensor>, kNumContents> all;
  const std::lock_guard lock(mutex);
  std::vector<Tensor>& tensors = all[content % kNumContents];
  if (tensors.empty()) tensors = MakeTensors(content % kNumContents);
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
  return bytes == tensor.bytes ? Status::Ok() : Differs("tensor " + tensor.name);
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
  return CompareState(content, reader);
}

}  // namespace varve::internal::testing
