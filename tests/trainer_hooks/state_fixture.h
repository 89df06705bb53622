// SPDX-License-Identifier: Apache-2.0
//
// Training states whose memory a test owns, and their way into a store. One thread at a time.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "codec/predict/rounded_copy.h"
#include "tests/store/store_fixture.h"
#include "tests/trainer_hooks/one_worker.h"
#include "trainer_hooks/state/item_name.h"
#include "varve/load.h"

namespace varve::internal::testing {

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A trainer: its state, and the memory of the tensors.
struct TestTrainer {
  TrainingState state;
  std::deque<std::vector<std::byte>> memory;  // grows without moving its elements

  TestTrainer() = default;
  TestTrainer(TestTrainer&&) = default;  // the memory stays where it is

  // Adds a dense tensor with these bytes.
  void Add(StateTensor tensor, std::vector<std::byte> bytes) {
    memory.push_back(std::move(bytes));
    tensor.data = memory.back().data();
    state.tensors.push_back(std::move(tensor));
  }
  void Add(TensorSpec spec, std::vector<std::byte> bytes) {
    Add(StateTensor{std::move(spec)}, std::move(bytes));
  }
  // Finite values, which depend on name and seed.
  void Add(TensorSpec spec, uint64_t seed) { Add(StateTensor{std::move(spec)}, seed); }
  void Add(StateTensor tensor, uint64_t seed) {
    TestTensor values = RandomTensor(tensor.name, tensor.dtype, tensor.shape,
                                     seed + std::hash<std::string>()(tensor.name));
    if (tensor.dtype == DType::kF32) {
      values =
          NormalTensor(tensor.name, tensor.shape, seed + std::hash<std::string>()(tensor.name));
    }
    Add(std::move(tensor), std::move(values.bytes));
  }
  // A second name for the storage of a tensor.
  void Tie(std::string name, const std::string& to) {
    StateTensor tied = Get(to);
    tied.name = std::move(name);
    state.tensors.push_back(std::move(tied));
  }

  // Removes all tensors whose names start with `prefix`.
  void Remove(const std::string& prefix) {
    std::erase_if(state.tensors,
                  [&](const StateTensor& tensor) { return tensor.name.starts_with(prefix); });
  }

  bool Has(const std::string& name) const {
    return std::any_of(state.tensors.begin(), state.tensors.end(),
                       [&](const StateTensor& tensor) { return tensor.name == name; });
  }
  StateTensor& Get(const std::string& name) {
    return const_cast<StateTensor&>(std::as_const(*this).Get(name));
  }
  const StateTensor& Get(const std::string& name) const {
    for (const StateTensor& tensor : state.tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << "no tensor " << name;
    std::abort();
  }
  std::vector<std::byte> Bytes(const std::string& name) const {
    const StateTensor& tensor = Get(name);
    const auto* data = static_cast<const std::byte*>(tensor.data);
    return {data, data + NumBytes(tensor.dtype, tensor.shape).value()};
  }
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const std::vector<std::byte> bytes = Bytes(name);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

// Makes mixed precision with Adam: parameters `model.NAME` in BF16, a buffer, and for each
// parameter the state of the optimizer in FP32: `master.NAME`, `exp_avg.NAME` and
// `exp_avg_sq.NAME`.
inline TestTrainer MixedPrecisionTrainer(uint64_t seed) {
  TestTrainer trainer;
  const std::pair<std::string, std::vector<int64_t>> parameters[] = {
      {"wte", {8, 4}}, {"h.0.w", {4, 4}}, {"h.0.lora", {4, 2}}, {"bias", {4}}};
  for (const auto& [name, shape] : parameters) {
    for (const std::string kind : {"master.", "exp_avg.", "exp_avg_sq."}) {
      trainer.Add({.name = kind + name, .shape = shape, .role = TensorRole::kOptimizer}, seed);
    }
    const std::vector<std::byte> master = trainer.Bytes("master." + name);
    std::vector<std::byte> rounded(master.size() / 2);
    MakeRoundedCopy(DType::kBF16, master, rounded);
    trainer.Add({.name = "model." + name,
                 .dtype = DType::kBF16,
                 .shape = shape,
                 .role = TensorRole::kParameter,
                 .derived_from = "master." + name},
                std::move(rounded));
  }
  trainer.Add(
      {.name = "model.mask", .dtype = DType::kU8, .shape = {4, 4}, .role = TensorRole::kBuffer},
      seed);
  trainer.state.trainer.global_step = static_cast<int64_t>(seed);
  trainer.state.trainer.lr_scheduler["last_lr"] = 0.1 * static_cast<double>(seed);
  trainer.state.items.push_back({"loader", std::nullopt, BytesOf(std::vector<uint64_t>{seed})});
  trainer.state.items.push_back({"loader", 3, BytesOf(std::vector<uint64_t>{seed + 1})});
  return trainer;
}

// Names of tensors that are in both, with the same bytes.
inline std::vector<std::string> SameTensors(const TestTrainer& a, const TestTrainer& b) {
  std::vector<std::string> same;
  for (const StateTensor& tensor : a.state.tensors) {
    if (b.Has(tensor.name) && a.Bytes(tensor.name) == b.Bytes(tensor.name)) {
      same.push_back(tensor.name);
    }
  }
  return same;
}

class StateTest : public StoreTest {
 protected:
  // Stores a state as a trainer's hook does: a second name of a storage is an alias of the first.
  void SaveState(uint64_t step, const TrainingState& state) {
    auto writer = store_->Begin(step);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    std::map<const void*, std::string> first_names;
    for (const StateTensor& tensor : state.tensors) {
      const std::string& first = first_names.try_emplace(tensor.data, tensor.name).first->second;
      VARVE_ASSERT_OK((*writer)->Put({.name = tensor.name,
                                      .dtype = tensor.dtype,
                                      .shape = tensor.shape,
                                      .data = tensor.data,
                                      .strides = tensor.strides,
                                      .derived_from = tensor.derived_from,
                                      .alias_of = first == tensor.name ? "" : first,
                                      .role = tensor.role}));
    }
    for (const StateItem& item : state.items) {
      const auto name = EncodeItemName({item.name, item.rank});
      VARVE_ASSERT_OK(name.status());
      VARVE_ASSERT_OK((*writer)->PutBytes(*name, item.value));
    }
    VARVE_ASSERT_OK((*writer)->SetTrainerProgress(state.trainer));
    VARVE_ASSERT_OK((*writer)->Commit().status());
  }

  Result<LoadReport> Load(uint64_t step, TestTrainer* into, const LoadOptions& options = {}) {
    VARVE_ASSIGN_OR_RETURN(const auto reader, store_->OpenCheckpoint("main", step));
    return LoadState(*reader, options, &into->state);
  }

  // All tensors of the state that was saved are loaded.
  void ExpectLoads(uint64_t step, const TestTrainer& saved, TestTrainer* into,
                   const LoadOptions& options = {}) {
    const auto report = Load(step, into, options);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->num_tensors, into->state.tensors.size());
    EXPECT_EQ(SameTensors(saved, *into).size(), into->state.tensors.size());
  }

  // The load fails, says this, and leaves all memory as it was.
  void ExpectRefused(uint64_t step, TestTrainer* into, const std::string& text,
                     const LoadOptions& options = {}) {
    const std::deque<std::vector<std::byte>> before = into->memory;
    EXPECT_THAT(Load(step, into, options), FailsWith(StatusCode::kInvalidArgument, text));
    EXPECT_EQ(into->memory, before);
  }
};

}  // namespace varve::internal::testing
