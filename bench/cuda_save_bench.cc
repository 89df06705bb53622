// SPDX-License-Identifier: Apache-2.0
//
// Each round changes a share of the chunks of a state, measures the baseline of a save, and saves.
// The device is idle when a round starts.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench_params.h"
#include "bench/cuda_bench.h"
#include "bench/cuda_model.h"
#include "bench/measure.h"
#include "bench/rows.h"
#include "bench/workplace.h"
#include "cuda/device_digest.h"
#include "varve/async_checkpointer.h"
#include "varve/cuda.h"

namespace varve::internal::bench {
namespace {

constexpr double kShares[] = {0, 0.01, 0.1, 1};
constexpr double kFixed = 0.2e-3;  // seconds that every stall may take

std::string Percent(double share) {
  return std::to_string(std::lround(100 * share)) + " % changed";
}
std::string SaveRow(double share) { return "GPU stall of Save, " + Percent(share); }
std::string OverlapRow(double share) { return "GPU stall, two-phase, " + Percent(share); }
std::string AheadRow(double share) { return "GPU idle, two-phase, host ahead, " + Percent(share); }
std::string DurableRow(double share) { return "GPU time to durable, " + Percent(share); }
std::string LargeRow(double share) { return "GPU stall of Save, largest state, " + Percent(share); }
constexpr char kGrantedRow[] = "GPU stall of Save, 100 % changed, staging for all";
constexpr char kFirstRow[] = "GPU stall of the first Save, prewarmed";
constexpr char kRestoreRow[] = "GPU restore";
constexpr char kSaveTarget[] = "<= 1.5 x read pass + 0.2 ms";
constexpr char kCopyTarget[] = "<= 1.1 x pinned copy of all";
constexpr char kOverlapTarget[] = "<= 0.1 x read pass + 0.2 ms";

// The times of one save, in seconds.
struct SaveSample {
  double host = 0;  // that the calls took
  double idle = 0;  // that the trainer's stream had nothing to do
  double slow = 0;  // that the step took longer than without the save
  double pass = 0;  // reads the state once, in the same round
  double durable = 0;

  // The trainer is held on the host, or its next work on the device waits for reads of the save.
  double stall() const { return std::max(host, idle); }
};

std::vector<double> Values(const std::vector<SaveSample>& samples, double SaveSample::*member) {
  std::vector<double> values;
  for (const SaveSample& sample : samples) values.push_back(sample.*member);
  return values;
}

// A training whose state lies on a device, and what its saves cost.
class Saves {
 public:
  Saves(const CudaParams& params, std::span<std::byte> state, uint64_t host_bytes, Gpu* gpu,
        JudgedTable* table)
      : params_(params),
        gpu_(gpu),
        table_(table),
        state_(state),
        host_bytes_(host_bytes),
        place_(params.folder),
        path_(place_.NewPath("cuda")) {
    constexpr uint64_t kTensorBytes = 8 * kMiB;  // as many tensors as a large model has
    for (size_t at = 0; at < state.size(); at += kTensorBytes) {
      const uint64_t size = std::min<uint64_t>(kTensorBytes, state.size() - at);
      view_.tensors.push_back({{.name = "layers." + std::to_string(at / kTensorBytes),
                                .shape = {static_cast<int64_t>(size / 4)}},
                               state.data() + at,
                               0});
    }
    copy_ = gpu->PinnedCopy(state);
    copy_ = std::min(copy_, gpu->PinnedCopy(state));
    table->AddSamples("pinned copy of all, " + std::to_string(state.size() / kMiB) + " MiB: s",
                      {copy_});
  }

  double copy() const { return copy_; }
  const TrainingState& view() const { return view_; }

  // Opens the store anew, with so much staging on the device.
  void Open(uint64_t staging_bytes) {
    Close();
    model_ = {.bytes = static_cast<double>(state_.size()),
              .copy = copy_,
              .staging = static_cast<double>(staging_bytes)};
    source_ = Must(CudaTensorSource::Create(
        {.streams = {{0, gpu_->stream()}}, .staging_bytes = staging_bytes}));
    checkpointer_ =
        Must(AsyncCheckpointer::Open(path_, {.staging_budget_bytes = host_bytes_,
                                             .store = {.compression = Compression::kNone},
                                             .devices = source_,
                                             .retention = RetentionPolicy{.keep_last = 1}}));
    Require(checkpointer_->Prewarm(view_));
  }
  void Close() {
    if (checkpointer_ != nullptr) Require(checkpointer_->Close());
    checkpointer_.reset();
    source_.reset();
  }

  // Save, while the device is idle.
  SaveSample One() {
    SaveSample sample{.pass = gpu_->ReadPass(state_)};
    Synchronize();
    before_.Record(gpu_->stream());
    sample.host = Seconds([&] { Require(checkpointer_->Save(++step_, view_).status()); });
    after_.Record(gpu_->stream());
    Finish(&sample);
    return sample;
  }

  // Runs BeginSave, a step of products that lasts longer than the copy of what changed, and
  // AwaitStaged.
  // AwaitStaged comes when the step is done, or `ahead` of it, as in a trainer that only enqueues.
  SaveSample Two(double share, bool ahead) {
    SaveSample sample{.pass = gpu_->ReadPass(state_)};
    Synchronize();
    begin_.Record(gpu_->stream());
    sample.host = Seconds([&] { Require(checkpointer_->BeginSave(++step_, view_).status()); });
    const double alone = gpu_->EnqueueStep(1.5 * share * copy_ + 4 * sample.pass + 20e-3);
    before_.Record(gpu_->stream());
    if (!ahead) before_.Await();
    sample.host += Seconds([&] { Require(checkpointer_->AwaitStaged()); });
    after_.Record(gpu_->stream());
    Finish(&sample);
    sample.slow = before_.Since(begin_) - alone;
    return sample;
  }

  // Rounds of a measure. The first is thrown away.
  template <typename Save>
  std::vector<SaveSample> Rounds(double share, const Save& save) {
    std::vector<SaveSample> samples;
    const auto start = std::chrono::steady_clock::now();
    const auto spent = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    for (int round = 0; round <= params_.rounds; ++round) {
      if (round > kMinRounds && spent() > params_.seconds) break;
      Change(share);
      const SaveSample sample = save();
      if (round > 0) samples.push_back(sample);
    }
    return samples;
  }

  // Predicts a stall of Save for a read pass that took so long.
  auto Predicts(double share) const {
    return [this, share](double pass) { return PredictSave(model_, share, pass); };
  }

  // `judged` of a save against `limit` of a read pass that took so long, and what `predict` says.
  template <typename Judged, typename Limit, typename Predict>
  void Judge(const std::string& what, const std::vector<SaveSample>& samples, const Judged& judged,
             const Limit& limit, const Predict& predict) {
    const auto values = [&](double SaveSample::*member) { return Values(samples, member); };
    std::vector<double> shares;
    for (const SaveSample& sample : samples) shares.push_back(judged(sample) / limit(sample.pass));
    const auto ms = [&](double SaveSample::*member, double q) {
      return 1e3 * Quantile(values(member), q);
    };
    const double predicted = predict(Quantile(values(&SaveSample::pass), 0.5));
    char measured[280];
    std::snprintf(measured, sizeof measured,
                  "%.2f of it, predicted %.2f ms; host %.2f ms (p99 %.2f), GPU idle %.2f ms (p99 "
                  "%.2f), step + %.2f "
                  "ms, read pass %.2f ms, pinned copy %.0f ms, n %zu",
                  Quantile(shares, 0.5), 1e3 * predicted, ms(&SaveSample::host, 0.5),
                  ms(&SaveSample::host, 0.99), ms(&SaveSample::idle, 0.5),
                  ms(&SaveSample::idle, 0.99), ms(&SaveSample::slow, 0.5),
                  ms(&SaveSample::pass, 0.5), 1e3 * copy_, samples.size());
    table_->Judge(what, measured, Quantile(shares, 0.5) <= 1);
    table_->AddSamples(what + ": host s", values(&SaveSample::host));
    table_->AddSamples(what + ": idle s", values(&SaveSample::idle));
    table_->AddSamples(what + ": read pass s", values(&SaveSample::pass));
  }

  // Gives `share` of all chunks new content, evenly spread.
  void Change(double share) {
    double due = 0;
    for (size_t at = 0; at < state_.size(); at += kChunkBytes) {
      due += share;
      if (due < 1 - 1e-9) continue;
      due -= 1;
      const auto chunk = state_.subspan(at, std::min<size_t>(kChunkBytes, state_.size() - at));
      RequireCuda(EnqueueNoise(++noise_, chunk, gpu_->stream()), "noise");
    }
    Synchronize();
  }

  // Returns the seconds of a restore of the last step over other contents. It ends the program when
  // the state is not what it was.
  double Restore() {
    const std::vector<Digest> saved = Digests();
    Change(1);
    const double seconds = Seconds([&] {
      Require(checkpointer_->Restore("latest", {}, &view_).status());
      Synchronize();
    });
    if (Digests() != saved) Fail("the restored state is not the one that was saved");
    return seconds;
  }

 private:
  void Synchronize() {
    RequireCuda(cudaStreamSynchronize(gpu_->stream()), "cudaStreamSynchronize");
  }

  // Adds what is known about a save only afterwards.
  void Finish(SaveSample* sample) {
    after_.Await();
    sample->idle = after_.Since(before_);
    Require(checkpointer_->Wait());
    sample->durable = checkpointer_->last_stats()->durable_seconds;
  }

  std::vector<Digest> Digests() {
    std::vector<gpu::DeviceChunk> chunks;
    for (size_t at = 0; at + kChunkBytes <= state_.size(); at += kChunkBytes) {
      chunks.push_back({state_.data() + at, kChunkBytes});
    }
    const auto digester = Must(gpu::DeviceDigester::Create(0, chunks.size()));
    Require(digester->Enqueue(0, chunks, gpu_->stream()));
    const auto digests = Must(digester->Take());
    return {digests.begin(), digests.end()};
  }

  const CudaParams& params_;
  Gpu* const gpu_;
  JudgedTable* const table_;
  const std::span<std::byte> state_;
  const uint64_t host_bytes_;
  Workplace place_;
  const std::filesystem::path path_;
  TrainingState view_;
  double copy_ = 0;  // seconds of a pinned copy of everything
  ModelOfState model_;
  uint64_t step_ = 0;
  uint64_t noise_ = 1;
  Mark begin_, before_, after_;
  std::shared_ptr<CudaTensorSource> source_;
  std::unique_ptr<AsyncCheckpointer> checkpointer_;
};

double Stall(const SaveSample& sample) { return sample.stall(); }
double Idle(const SaveSample& sample) { return sample.idle; }
double SaveLimit(double pass) { return 1.5 * pass + kFixed; }
double OverlapLimit(double pass) { return 0.1 * pass + kFixed; }
double OverlapPrediction(double) { return PredictTwoPhases(); }

std::string Gigabytes(double bytes, double seconds) {
  char text[96];
  std::snprintf(text, sizeof text, "%.2f GB/s (%.2f s)", bytes / 1e9 / seconds, seconds);
  return text;
}

void MeasureRestore(const CudaParams& params, Saves* saves, JudgedTable* table) {
  std::vector<double> times;
  for (int round = 0; round < kMinRounds; ++round) times.push_back(saves->Restore());
  const auto bytes = static_cast<double>(params.state_bytes);
  table->Inform(kRestoreRow, Gigabytes(bytes, Quantile(times, 0.5)) +
                                 "; pinned copy to the host: " + Gigabytes(bytes, saves->copy()));
  table->AddSamples(std::string(kRestoreRow) + ": s", times);
}

}  // namespace

std::vector<PlannedRow> PlanSaves() {
  std::vector<PlannedRow> rows = {{kFirstRow, kCopyTarget}};
  for (const double share : kShares) {
    rows.push_back({SaveRow(share), share <= 0.01 ? kSaveTarget : kCopyTarget});
  }
  rows.push_back({kGrantedRow, "<= 2.6 x read pass"});
  for (const double share : kShares) {
    rows.push_back({OverlapRow(share), kOverlapTarget});
    rows.push_back({AheadRow(share), kOverlapTarget});
  }
  for (const double share : kShares) rows.push_back({DurableRow(share), "no target"});
  rows.push_back({kRestoreRow, "no target"});
  return rows;
}

std::vector<PlannedRow> PlanLarge() {
  return {{LargeRow(0), kSaveTarget}, {LargeRow(0.01), kSaveTarget}};
}

void MeasureSaves(const CudaParams& params, Gpu* gpu, JudgedTable* table) {
  const std::span<std::byte> state = gpu->TakeState(params.state_bytes);
  Saves saves(params, state, state.size() + 16 * kMiB, gpu, table);
  const auto copy_limit = [&](double) { return 1.1 * saves.copy(); };

  saves.Open(256 * kMiB);
  saves.Judge(kFirstRow, {saves.One()}, Stall, copy_limit, saves.Predicts(1));
  for (const double share : kShares) {
    const auto samples = saves.Rounds(share, [&] { return saves.One(); });
    if (share <= 0.01) {
      saves.Judge(SaveRow(share), samples, Stall, SaveLimit, saves.Predicts(share));
    } else {
      saves.Judge(SaveRow(share), samples, Stall, copy_limit, saves.Predicts(share));
    }
    const auto durable = Values(samples, &SaveSample::durable);
    const double changed = share * static_cast<double>(state.size());
    table->Inform(DurableRow(share), Milliseconds(Quantile(durable, 0.5)) + ": " +
                                         Gigabytes(changed, Quantile(durable, 0.5)));
    table->AddSamples(DurableRow(share) + ": s", durable);
  }
  for (const double share : kShares) {
    const auto done = saves.Rounds(share, [&] { return saves.Two(share, false); });
    saves.Judge(OverlapRow(share), done, Stall, OverlapLimit, OverlapPrediction);
    const auto ahead = saves.Rounds(share, [&] { return saves.Two(share, true); });
    saves.Judge(AheadRow(share), ahead, Idle, OverlapLimit, OverlapPrediction);
  }
  MeasureRestore(params, &saves, table);

  saves.Close();
  if (Gpu::FreeBytes() < state.size() + kGiB) {
    table->NotRun(kGrantedRow, "the device has not so much memory left");
  } else {
    saves.Open(state.size() + 16 * kMiB);
    const auto samples = saves.Rounds(1, [&] { return saves.One(); });
    const auto limit = [](double pass) { return 2.6 * pass; };
    saves.Judge(kGrantedRow, samples, Stall, limit, saves.Predicts(1));
  }
  saves.Close();
}

void MeasureLarge(const CudaParams& params, Gpu* gpu, JudgedTable* table) {
  const std::span<std::byte> state = gpu->TakeState(params.large_bytes);
  Saves saves(params, state, kGiB, gpu, table);
  saves.Open(256 * kMiB);
  saves.One();
  for (const double share : {0.0, 0.01}) {
    const auto samples = saves.Rounds(share, [&] { return saves.One(); });
    saves.Judge(LargeRow(share), samples, Stall, SaveLimit, saves.Predicts(share));
  }
  saves.Close();
}

}  // namespace varve::internal::bench
