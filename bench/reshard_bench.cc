// SPDX-License-Identifier: Apache-2.0
//
// reshard_bench [--folder FOLDER] [--mib N] [--rounds N]: the cost of restoring a checkpoint onto
// other ranks than those that saved it. It prints one row a target. README.md explains the numbers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench_params.h"
#include "bench/measure.h"
#include "bench/peak_memory.h"
#include "bench/rows.h"
#include "bench/state.h"
#include "bench/workplace.h"
#include "tests/support/shard_reference.h"
#include "trainer_hooks/group/exchange.h"
#include "varve/group_checkpointer.h"

namespace varve::internal::bench {
namespace {

struct Flags {
  std::string folder = "bench-stores";
  uint64_t mib = 512;
  int rounds = 7;
};

using Shape = std::array<int64_t, 2>;  // of a weight in FP32
constexpr Shape kEven = {2048, 2048};  // 16 MiB. Parts end with chunks
constexpr Shape kOdd = {2049, 2047};   // 16 MiB. Parts end within chunks
constexpr Shape kLargeOdd = {8193, 2047};

struct Tensor {
  std::string name;
  Shape shape;
  size_t axis = 0;  // that tensor parallelism cuts
  std::vector<std::byte> bytes;
};

// As in a transformer, half of the weights are cut by rows, half by columns.
enum class Which { kBoth, kRows, kColumns };
std::vector<Tensor> MakeModel(uint64_t bytes, const Shape& shape) {
  const auto tensor_bytes = static_cast<uint64_t>(shape[0] * shape[1] * 4);
  std::vector<Tensor> model;
  for (uint64_t i = 0; i < std::max<uint64_t>(2, bytes / tensor_bytes); ++i) {
    Tensor& tensor = model.emplace_back();
    tensor.shape = shape;
    tensor.axis = i % 2;
    tensor.name = "layers." + std::to_string(i / 2) + (tensor.axis == 0 ? ".rows" : ".columns");
    tensor.bytes.resize(tensor_bytes);
    FillNoise(Mix(1, i), tensor.bytes);
  }
  return model;
}

// The part of [0, size) that is number `i` of `n`, as even as may be.
Range Part(int64_t size, int n, int i) { return {size * i / n, size * (i + 1) / n}; }

// How the ranks of a job share each tensor: `tp` parts along its axis, each of them in `zero` flat
// slices. Tensor-parallel ranks are neighbours.
struct Layout {
  int tp = 1;
  int zero = 1;
  int size() const { return tp * zero; }

  ShardLayout Of(const Tensor& tensor, int rank) const {
    ShardLayout layout = ShardLayout::Whole({tensor.shape[0], tensor.shape[1]});
    const Range part = Part(tensor.shape[tensor.axis], tp, rank % tp);
    layout.axes[tensor.axis] = {{.begin = part.begin, .length = part.end - part.begin}};
    if (zero > 1) layout.flat = Part(layout.NumLocal(), zero, rank / tp);
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
        states_[static_cast<size_t>(rank)].tensors.push_back({{.name = tensor->name,
                                                               .dtype = DType::kF32,
                                                               .shape = part.LocalShape(),
                                                               .layout = part},
                                                              memory.data()});
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
    std::optional<uint64_t> peak_bytes;  // of memory, above what was used before, if that is known
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
    OnAll(
        [&](size_t rank) { opened[rank] = Must(OpenGroupCheckpointer(root, groups[rank].get())); });
    const std::optional<uint64_t> used = ResetPeakMemory();
    const uint64_t read = BytesRead();
    const double seconds =
        Seconds([&] { OnAll([&](size_t rank) { work(opened[rank].get(), &states_[rank]); }); });
    if (cost != nullptr) {
      *cost = {.seconds = seconds, .bytes_read = BytesRead() - read};
      if (used.has_value()) cost->peak_bytes = PeakMemoryBytes() - *used;
    }
    OnAll([&](size_t rank) { Require(opened[rank]->Close()); });
  }

  void OnAll(const std::function<void(size_t)>& work) {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < states_.size(); ++rank) threads.emplace_back(work, rank);
  }

  // Bytes that this process has read from files.
  static uint64_t BytesRead() {
    std::ifstream file("/proc/self/io");
    for (std::string word; file >> word;) {
      uint64_t number = 0;
      if (word == "rchar:" && file >> number) return number;
    }
    Fail("there is no rchar in /proc/self/io");
  }

  const Layout layout_;
  std::vector<const Tensor*> model_;
  std::vector<std::vector<std::byte>> memory_;  // rank by rank
  std::vector<TrainingState> states_;
  uint64_t bytes_ = 0;
};

Rows rows;

constexpr uint64_t kMostRanks = 4;  // of a job here
// What one rank may hold besides its state.
const uint64_t kReadBudget = CheckpointerOptions{}.store.pipeline_budget_bytes;

// The highest of some restores.
class Peak {
 public:
  void Add(const Job::Cost& cost) {
    is_known_ = is_known_ && cost.peak_bytes.has_value();
    bytes_ = std::max(bytes_, cost.peak_bytes.value_or(0));
  }
  void Print(const std::string& what, uint64_t allowed_bytes, const std::string& note) const {
    const double allowed = static_cast<double>(allowed_bytes) / kMiB;
    const std::string row = "peak memory above the target, MiB, " + what;
    if (is_known_) return rows.Print(row, static_cast<double>(bytes_) / kMiB, allowed, note);
    rows.PrintUnmeasured(row, allowed, "this system does not tell the peak of memory");
  }

 private:
  bool is_known_ = true;
  uint64_t bytes_ = 0;
};

// Restores onto tp 2 x zero what was saved on tp 4, and in turns what the same ranks have saved.
// Compares the times.
void MeasureTime(const Flags& flags, const std::vector<Tensor>& model, Workplace* place) {
  const auto other_root = place->NewPath("tp4"), same_root = place->NewPath("tp2-zero");
  Job(model, Which::kBoth, {.tp = 4}).Save(other_root);
  Job job(model, Which::kBoth, {.tp = 2, .zero = 2});
  job.Save(same_root);
  std::vector<double> ratios, seconds;
  Peak peak;
  for (int round = -1; round < flags.rounds; ++round) {
    const Job::Cost same = job.Restore(same_root, false), other = job.Restore(other_root, false);
    if (round < 0) continue;  // the first look is a cold one
    ratios.push_back(other.seconds / same.seconds);
    seconds.push_back(other.seconds);
    peak.Add(same);
    peak.Add(other);
  }
  rows.Print("time, tp 4 to tp 2 x zero, to the same without", Quantile(ratios, 0.5), 1.5,
             Milliseconds(Quantile(seconds, 0.5)));
  peak.Print("4 ranks", kReadBudget, "of all in one process; the budget of one");
}

// A way to restore, and what all ranks read together, to what they hold.
struct Cut {
  std::string what;
  Which which = Which::kBoth;
  Layout from;
  Layout to;
};
double BytesRead(const Job::Cost& cost, const Job& job) {
  return static_cast<double>(cost.bytes_read) / static_cast<double>(job.bytes());
}

void MeasureBytes(const std::vector<Tensor>& model, Workplace* place, const Cut& cut) {
  const auto root = place->NewPath("bytes");
  Job(model, cut.which, cut.from).Save(root);
  Job job(model, cut.which, cut.to);
  rows.Print("bytes read, " + cut.what, BytesRead(job.Restore(root, false), job), 1.1, "");
  place->Remove(root);
}

void MeasureExchange(const std::vector<Tensor>& model, Workplace* place, const Cut& cut,
                     Peak* peak) {
  const auto root = place->NewPath("bytes");
  Job(model, cut.which, cut.from).Save(root);
  Job job(model, cut.which, cut.to);
  char note[64] = "";
  std::snprintf(note, sizeof note, "%.3f without", BytesRead(job.Restore(root, false), job));
  const Job::Cost cost = job.Restore(root, true);
  rows.Print("bytes read, exchange, " + cut.what, BytesRead(cost, job), 1.1, note);
  peak->Add(cost);
  place->Remove(root);
}

void MeasureCuts(const Flags& flags, const std::vector<Tensor>& model, Workplace* place) {
  const auto alone = [&](const Cut& cut) { MeasureBytes(model, place, cut); };
  alone({"axis 0: tp 4 to tp 2", Which::kRows, {.tp = 4}, {.tp = 2}});
  alone({"axis 0: tp 2 to tp 4", Which::kRows, {.tp = 2}, {.tp = 4}});
  alone({"flat: tp 4 to tp 2 x zero 2", Which::kRows, {.tp = 4}, {.tp = 2, .zero = 2}});
  alone({"flat: zero 4 to zero 2", Which::kRows, {.zero = 4}, {.zero = 2}});
  // Where a cut goes through a chunk, two ranks read that chunk. So each cut adds one chunk a
  // tensor.
  const std::vector<Tensor> large = MakeModel(flags.mib * kMiB, kLargeOdd);
  MeasureBytes(large, place, {"axis 0, odd: tp 4 to tp 3", Which::kRows, {.tp = 4}, {.tp = 3}});
  MeasureBytes(large, place,
               {"flat, odd: zero 4 to zero 3", Which::kRows, {.zero = 4}, {.zero = 3}});
}

void MeasureExchanges(const Flags& flags, const std::vector<Tensor>& model, Workplace* place) {
  Peak peak;
  const auto even = [&](const Cut& cut) { MeasureExchange(model, place, cut, &peak); };
  even({"axis 1: tp 4 to tp 2", Which::kColumns, {.tp = 4}, {.tp = 2}});
  even({"axis 1: tp 2 to tp 4", Which::kColumns, {.tp = 2}, {.tp = 4}});
  even({"axis 1: whole to tp 4", Which::kColumns, {}, {.tp = 4}});
  const std::vector<Tensor> small = MakeModel(flags.mib * kMiB, kOdd);
  const auto odd = [&](const Cut& cut) { MeasureExchange(small, place, cut, &peak); };
  odd({"axis 0, odd: tp 4 to tp 3", Which::kRows, {.tp = 4}, {.tp = 3}});
  odd({"flat, odd: zero 4 to zero 3", Which::kRows, {.zero = 4}, {.zero = 3}});
  odd({"axis 1, odd: tp 4 to tp 3", Which::kColumns, {.tp = 4}, {.tp = 3}});
  peak.Print("exchange", kReadBudget + kMostRanks * kExchangeBudgetBytes,
             "of all; that, and what each has of a round");
}

int Main(int argc, char** argv) {
  CLI::App app("What restoring onto other ranks costs");
  Flags flags;
  app.add_option("--folder", flags.folder, "Where stores are made; removed at the end");
  app.add_option("--mib", flags.mib, "Size of the state")->check(CLI::PositiveNumber);
  app.add_option("--rounds", flags.rounds, "Pairs of restores")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  Workplace place(flags.folder);
  const std::vector<Tensor> model = MakeModel(flags.mib * kMiB, kEven);
  std::printf(
      "state of %zu MiB that no codec shrinks, in the cache; 4 ranks that are threads, %u "
      "cores; every restore is compared\n",
      model.size() * model[0].bytes.size() / kMiB, std::thread::hardware_concurrency());
  MeasureTime(flags, model, &place);
  MeasureCuts(flags, model, &place);
  MeasureExchanges(flags, model, &place);
  return rows.Finish();
}

}  // namespace
}  // namespace varve::internal::bench

int main(int argc, char** argv) { return varve::internal::bench::Main(argc, argv); }
