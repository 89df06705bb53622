// SPDX-License-Identifier: Apache-2.0
#include "tests/store/power_cut/workload.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "codec/predict/rounded_copy.h"
#include "tests/support/power_cut.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

bool Equal(const TestTensor& a, const TestTensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
}

std::map<std::string, std::string> FilesBelow(const fs::path& root) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    std::ostringstream text;
    if (entry.is_regular_file()) text << std::ifstream(entry.path()).rdbuf();
    all[fs::relative(entry.path(), root)] = text.str();
  }
  return all;
}

// The record is complete: what it says is there now is what is there.
void ExpectComplete(const Recorded& recorded, const fs::path& root, const fs::path& image) {
  Disk disk;
  for (const DiskOp& op : recorded.ops) disk.Apply(op);
  disk.Make(PowerCut::kNothing, 0, image);
  const auto there = FilesBelow(root), said = FilesBelow(image);
  for (const auto& [name, bytes] : there) {
    ASSERT_TRUE(said.contains(name)) << name;
    EXPECT_TRUE(said.at(name) == bytes) << name;
  }
  EXPECT_EQ(said.size(), there.size());
  fs::remove_all(image);
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
  return a.exists == b.exists && a.tags == b.tags && std::ranges::equal(a.steps, b.steps, same);
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
  return text;
}

Result<State> ReadState(const Store& store) {
  State state;
  state.exists = true;
  VARVE_ASSIGN_OR_RETURN(const auto runs, store.ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_ASSIGN_OR_RETURN(const auto steps, store.ListCheckpoints(run.name));
    for (const CheckpointInfo& info : steps) {
      for (const std::string& tag : info.tags) state.tags[{run.name, tag}] = info.id.step;
      VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(run.name, info.id.step));
      VARVE_ASSIGN_OR_RETURN(const auto list, reader->List());
      std::vector<TestTensor> tensors;
      for (const TensorInfo& found : list) {
        TestTensor tensor{found.name, found.dtype, found.shape, {}, {}};
        tensor.bytes.resize(found.logical_bytes);
        VARVE_RETURN_IF_ERROR(reader->Read(found.name, tensor.bytes));
        tensors.push_back(std::move(tensor));
      }
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

void Recorder::Run(const std::string& name, const std::function<Status()>& operation,
                   const std::function<void()>& change) {
  const uint64_t number = recorded_.names.size();
  recorded_.names.push_back(name);
  record_.Mark(2 * number);
  const Status status = operation();
  ASSERT_TRUE(status.ok()) << name << ": " << status.ToString();
  record_.Mark(2 * number + 1);
  change();
  recorded_.states.push_back(now);
  recorded_.copies.push_back(backup);
}

Recorded Recorder::Finish(const fs::path& image) {
  recorded_.first = record_.first();
  recorded_.ops = record_.Finish();
  ExpectComplete(recorded_, root_, image);
  return std::move(recorded_);
}

}  // namespace varve::internal::testing
