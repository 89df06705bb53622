// SPDX-License-Identifier: Apache-2.0
//
// reshard_bench [--folder FOLDER] [--mib N] [--rounds N]: what it costs to restore a checkpoint
// onto other ranks than those that have saved it. Prints one row a target; README.md says what each
// number is.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench_params.h"
#include "bench/measure.h"
#include "bench/rows.h"
#include "bench/state.h"
#include "bench/workplace.h"
#include "tests/support/shard_reference.h"
#include "varve/group_checkpointer.h"

namespace varve::bench {
namespace {

struct Flags {
  std::string folder = "bench-stores";
  uint64_t mib = 512;
  int rounds = 7;
};

constexpr int64_t kSide = 2048;  // of a weight, FP32: 16 MiB
constexpr uint64_t kTensorBytes = kSide * kSide * 4;

struct Tensor {
  std::string name;
  size_t axis = 0;  // that tensor parallelism cuts
  std::vector<std::byte> bytes;
};

// As in a transformer, half of the weights are cut by rows, half by columns.
enum class Which { kBoth, kRows, kColumns };
std::vector<Tensor> MakeModel(uint64_t bytes) {
  std::vector<Tensor> model;
  for (uint64_t i = 0; i < std::max<uint64_t>(2, bytes / kTensorBytes); ++i) {
    Tensor& tensor = model.emplace_back();
    tensor.axis = i % 2;
    tensor.name = "layers." + std::to_string(i / 2) + (tensor.axis == 0 ? ".rows" : ".columns");
    tensor.bytes.resize(kTensorBytes);
    FillNoise(Mix(1, i), tensor.bytes);
  }
  return model;
}

// How the ranks of a job share each tensor: `tp` parts along its axis, each of them in `zero` flat
// slices. Tensor-parallel ranks are neighbours.
struct Layout {
  int tp = 1;
  int zero = 1;
  int size() const { return tp * zero; }

  ShardLayout Of(const Tensor& tensor, int rank) const {
    ShardLayout layout = ShardLayout::Whole({kSide, kSide});
    const int64_t part = kSide / tp;
    layout.axes[tensor.axis] = {{.begin = rank % tp * part, .length = part}};
    if (zero == 1) return layout;
    const int64_t slice = kSide * part / zero;
    layout.flat = Range{rank / tp * slice, (rank / tp + 1) * slice};
    return layout;
  }
};

// The ranks of one job as threads, each with memory for what it holds.
class Job {
 public:
  Job(const std::vector<Tensor>& model, Which which, Layout layout)
      : layout_(layout), states_(static_cast<size_t>(layout.size())) {
    for (const Tensor& tensor : model) {
      if (which != Which::kBoth && (which == Which::kRows) != (tensor.axis == 0)) continue;
      model_.push_back(&tensor);
    }
    for (int rank = 0; rank < layout.size(); ++rank) {
      for (const Tensor* tensor : model_) {
        const ShardLayout part = layout.Of(*tensor, rank);
        auto& memory =
            memory_.emplace_back(testing::CutShard(tensor->bytes, 4, part, std::byte{0}));
        bytes_ += memory.size();
        states_[static_cast<size_t>(rank)].tensors.push_back({.name = tensor->name,
                                                              .dtype = DType::kF32,
                                                              .shape = part.LocalShape(),
                                                              .data = memory.data(),
                                                              .layout = part});
      }
    }
  }

  uint64_t bytes() const { return bytes_; }

  void Save(const std::filesystem::path& root) {
    Run(root, [](AsyncCheckpointer* checkpointer, TrainingState* state) {
      Require(checkpointer->Save(1, *state).status());
      Require(checkpointer->Wait());
    });
  }

  // All ranks at once. Ends the program unless every byte is right again.
  struct Cost {
    double seconds = 0;
    uint64_t bytes_read = 0;
    uint64_t peak_bytes = 0;  // of memory above what there was before
  };
  Cost Restore(const std::filesystem::path& root, bool exchange) {
    const std::vector<std::vector<std::byte>> right = memory_;
    for (auto& memory : memory_) std::fill(memory.begin(), memory.end(), std::byte{1});
    Cost cost;
    Run(
        root,
        [&](AsyncCheckpointer* checkpointer, TrainingState* state) {
          Require(checkpointer->Restore("latest", {.exchange = exchange}, state).status());
        },
        &cost);
    if (memory_ != right) Fail("a restore gave other bytes than were saved");
    return cost;
  }

 private:
  using Work = std::function<void(AsyncCheckpointer*, TrainingState*)>;

  // Opens the checkpointers of all ranks, and costs what they do then.
  void Run(const std::filesystem::path& root, const Work& work, Cost* cost = nullptr) {
    const auto groups = ThreadRanks(layout_.size());
    std::vector<std::unique_ptr<AsyncCheckpointer>> opened(groups.size());
    OnAll([&](size_t rank) { opened[rank] = Must(OpenWithRanks(root, groups[rank].get())); });
    const uint64_t read = FromProc("/proc/self/io", "rchar:");
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak is what is used now
    const uint64_t used = FromProc("/proc/self/status", "VmHWM:");
    const double seconds =
        Seconds([&] { OnAll([&](size_t rank) { work(opened[rank].get(), &states_[rank]); }); });
    if (cost != nullptr) {
      *cost = {seconds, FromProc("/proc/self/io", "rchar:") - read,
               (FromProc("/proc/self/status", "VmHWM:") - used) * 1024};
    }
    OnAll([&](size_t rank) { Require(opened[rank]->Close()); });
  }

  void OnAll(const std::function<void(size_t)>& work) {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < states_.size(); ++rank) threads.emplace_back(work, rank);
  }

  static uint64_t FromProc(const std::string& path, const std::string& key) {
    std::ifstream file(path);
    for (std::string word; file >> word;) {
      uint64_t number = 0;
      if (word == key && file >> number) return number;
    }
    Fail("there is no " + key + " in " + path);
  }

  const Layout layout_;
  std::vector<const Tensor*> model_;
  std::vector<std::vector<std::byte>> memory_;  // rank by rank
  std::vector<TrainingState> states_;
  uint64_t bytes_ = 0;
};

Rows rows;

// Restoring onto tp 2 x zero what was saved on tp 4, beside the same restore of what the same ranks
// have saved, by turns.
void MeasureTime(const Flags& flags, const std::vector<Tensor>& model, Workplace* place) {
  const auto other_root = place->NewPath("tp4"), same_root = place->NewPath("tp2-zero");
  Job(model, Which::kBoth, {.tp = 4}).Save(other_root);
  Job job(model, Which::kBoth, {.tp = 2, .zero = 2});
  job.Save(same_root);
  std::vector<double> ratios, seconds, peaks;
  for (int round = -1; round < flags.rounds; ++round) {
    const Job::Cost same = job.Restore(same_root, false), other = job.Restore(other_root, false);
    if (round < 0) continue;  // the first look is a cold one
    ratios.push_back(other.seconds / same.seconds);
    seconds.push_back(other.seconds);
    peaks.push_back(static_cast<double>(std::max(other.peak_bytes, same.peak_bytes)) / kMiB);
  }
  rows.Print("time, tp 4 to tp 2 x zero, to the same without", Quantile(ratios, 0.5), 1.5,
             Milliseconds(Quantile(seconds, 0.5)));
  rows.Print("peak memory above the target, MiB, 4 ranks", Quantile(peaks, 1), 256,
             "in one process; budget of one rank");
}

// What all ranks read together, to what they hold.
void MeasureBytes(const std::vector<Tensor>& model, Workplace* place, const std::string& what,
                  Which which, Layout from, Layout to, bool exchange) {
  const auto root = place->NewPath("bytes");
  Job(model, which, from).Save(root);
  Job job(model, which, to);
  const auto ratio = [&](bool together) {
    return static_cast<double>(job.Restore(root, together).bytes_read) /
           static_cast<double>(job.bytes());
  };
  char note[64] = "";
  if (exchange) std::snprintf(note, sizeof note, "%.3f without", ratio(false));
  rows.Print("bytes read, " + what, ratio(exchange), 1.1, note);
  place->Remove(root);
}

int Main(int argc, char** argv) {
  CLI::App app("What restoring onto other ranks costs");
  Flags flags;
  app.add_option("--folder", flags.folder, "Where stores are made; removed at the end");
  app.add_option("--mib", flags.mib, "Size of the state")->check(CLI::PositiveNumber);
  app.add_option("--rounds", flags.rounds, "Pairs of restores")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  Workplace place(flags.folder);
  const std::vector<Tensor> model = MakeModel(flags.mib * kMiB);
  std::printf(
      "state of %zu MiB that no codec shrinks, in the cache; 4 ranks that are threads, %u "
      "cores; every restore is compared\n",
      model.size() * kTensorBytes / kMiB, std::thread::hardware_concurrency());
  MeasureTime(flags, model, &place);
  const auto bytes = [&](const std::string& what, Which which, Layout from, Layout to,
                         bool exchange = false) {
    MeasureBytes(model, &place, what, which, from, to, exchange);
  };
  bytes("axis 0: tp 4 to tp 2", Which::kRows, {.tp = 4}, {.tp = 2});
  bytes("axis 0: tp 2 to tp 4", Which::kRows, {.tp = 2}, {.tp = 4});
  bytes("flat: tp 4 to tp 2 x zero 2", Which::kRows, {.tp = 4}, {.tp = 2, .zero = 2});
  bytes("flat: zero 4 to zero 2", Which::kRows, {.zero = 4}, {.zero = 2});
  bytes("axis 1, exchange: tp 4 to tp 2", Which::kColumns, {.tp = 4}, {.tp = 2}, true);
  bytes("axis 1, exchange: tp 2 to tp 4", Which::kColumns, {.tp = 2}, {.tp = 4}, true);
  bytes("axis 1, exchange: whole to tp 4", Which::kColumns, {}, {.tp = 4}, true);
  return rows.Finish();
}

}  // namespace
}  // namespace varve::bench

int main(int argc, char** argv) { return varve::bench::Main(argc, argv); }
