// SPDX-License-Identifier: Apache-2.0
#include "tests/store/store_state.h"

#include <algorithm>

#include "codec/predict/rounded_copy.h"
#include "store/db/store_impl.h"

namespace varve::internal::testing {
namespace {

bool Equal(const TestTensor& a, const TestTensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape &&
         SameBytes(a.bytes, b.bytes);
}

}  // namespace

void State::Put(const CheckpointId& id, std::vector<TestTensor> tensors) {
  std::ranges::sort(tensors, {}, &TestTensor::name);
  steps[{id.run, id.step}] = std::make_shared<std::vector<TestTensor>>(std::move(tensors));
}

bool Equal(const State& a, const State& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.first == y.first &&
           std::ranges::equal(*x.second, *y.second, [](auto& s, auto& t) { return Equal(s, t); });
  };
  return a.exists == b.exists && a.tags == b.tags && a.metrics == b.metrics &&
         std::ranges::equal(a.steps, b.steps, same);
}

std::string ToString(const State& state) {
  if (!state.exists) return "no store";
  std::string text = "steps";
  for (const auto& [id, tensors] : state.steps) {
    text += " " + id.first + "@" + std::to_string(id.second);
  }
  for (const auto& [tag, step] : state.tags) {
    text += " " + tag.first + "/" + tag.second + "=" + std::to_string(step);
  }
  for (const auto& [id, metrics] : state.metrics) {
    for (const auto& [name, value] : metrics) {
      text += " " + name + " of " + id.first + "@" + std::to_string(id.second) + "=" +
              std::to_string(value);
    }
  }
  return text;
}

Result<std::vector<TestTensor>> ReadTensors(const Store& store, const CheckpointId& id) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(id.run, id.step));
  VARVE_ASSIGN_OR_RETURN(const auto list, reader->List());
  std::vector<TestTensor> tensors;
  for (const TensorInfo& found : list) {
    TestTensor tensor{found.name, found.dtype, found.shape, {}, {}};
    tensor.bytes.resize(found.logical_bytes);
    VARVE_RETURN_IF_ERROR(reader->Read(found.name, tensor.bytes));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Result<State> ReadState(const Store& store) {
  State state;
  state.exists = true;
  VARVE_ASSIGN_OR_RETURN(const auto runs, store.ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_ASSIGN_OR_RETURN(const auto steps, store.ListCheckpoints(run.name));
    for (const CheckpointInfo& info : steps) {
      for (const std::string& tag : info.tags) state.tags[{run.name, tag}] = info.id.step;
      if (!info.metrics.empty()) state.metrics[{run.name, info.id.step}] = info.metrics;
      VARVE_ASSIGN_OR_RETURN(auto tensors, ReadTensors(store, info.id));
      state.Put({run.name, info.id.step}, std::move(tensors));
    }
  }
  return state;
}

std::vector<TestTensor> ContentOfStep(uint64_t step) {
  TestTensor weights = NormalTensor("w", {6000}, 1);
  for (uint64_t i = 0; i < step % 16; ++i) weights = Drifted(weights, i);
  TestTensor copy{"w.bf16", DType::kBF16, weights.shape, {}, "w"};
  copy.bytes.resize(weights.bytes.size() / 2);
  MakeRoundedCopy(DType::kBF16, weights.bytes, copy.bytes);
  return {weights, copy, RandomTensor("noise", DType::kU8, {500}, step),
          RandomTensor("same", DType::kU8, {20000}, 77)};
}

Status SaveContentOf(Store* store, const CheckpointId& id, uint64_t content,
                     OnExisting on_existing) {
  VARVE_ASSIGN_OR_RETURN(auto writer,
                         store->Begin(id.step, {.run = id.run, .on_existing = on_existing}));
  const std::vector<TestTensor> tensors = ContentOfStep(content);
  for (const TestTensor& tensor : tensors) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
  return writer->Commit().status();
}

std::string CheckState(const Store& store, const std::vector<State>& allowed) {
  const auto state = ReadState(store);
  if (!state.ok()) return state.status().ToString();
  for (const State& each : allowed) {
    if (Equal(*state, each)) return "";
  }
  return "there are " + ToString(*state) + ", expected " + ToString(allowed.back()) +
         " (or their bytes differ)";
}

std::string CheckClean(const Store& store) {
  const auto check = store.Check({.read_data = true});
  if (!check.ok()) return "check: " + check.status().ToString();
  return check->errors.empty() ? "" : "check: " + check->errors[0];
}

void ApplyRequests(Store* store) { static_cast<StoreImpl*>(store)->ApplyInbox().IgnoreError(); }

}  // namespace varve::internal::testing
