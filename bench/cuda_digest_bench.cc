// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/digest.h"
#include "bench/bench_params.h"
#include "bench/cuda_bench.h"
#include "bench/cuda_model.h"
#include "bench/measure.h"
#include "bench/rows.h"
#include "bench/workplace.h"
#include "cuda/device_digest.h"

namespace varve::internal::bench {
namespace {

constexpr uint64_t kSeed = 0x123456789abcdef;
constexpr size_t kMisalignment = 3;  // bytes

struct Config {
  bool is_small;  // state
  uint64_t chunk_kib;
  bool is_misaligned;
  double target;  // of the read pass's speed

  std::string what() const {
    const std::string chunks = chunk_kib < 1024 ? std::to_string(chunk_kib) + " KiB"
                                                : std::to_string(chunk_kib / 1024) + " MiB";
    return std::string("GPU digest, ") + (is_small ? "small" : "large") + " state, " + chunks +
           (is_misaligned ? ", misaligned" : "");
  }
  std::string target_text() const {
    char text[64];
    std::snprintf(text, sizeof text, ">= %.2f x the best read pass", target);
    return text;
  }
};

constexpr Config kConfigs[] = {
    {false, 64, false, 0.85},  {false, 256, false, 0.85}, {false, 1024, false, 0.85},
    {false, 4096, false, 0.7}, {false, 64, true, 0.6},    {false, 1024, true, 0.6},
    {true, 64, false, 0.7},    {true, 256, false, 0.7},   {true, 1024, false, 0.7},
    {true, 4096, false, 0.7},  {true, 1024, true, 0.6},
};

std::vector<gpu::DeviceChunk> Cut(std::span<const std::byte> state, const Config& config) {
  std::vector<gpu::DeviceChunk> chunks;
  const uint64_t size = config.chunk_kib << 10;
  for (size_t at = config.is_misaligned ? kMisalignment : 0; at + size <= state.size();
       at += size) {
    chunks.push_back({state.data() + at, size});
  }
  return chunks;
}

// Ends the program unless some digests are those that the host computes.
void Verify(std::span<const gpu::DeviceChunk> chunks, std::span<const Digest> digests) {
  const size_t stride = std::max<size_t>(1, chunks.size() / 7);
  for (size_t i = 0; i < chunks.size(); i += stride) {
    std::vector<std::byte> bytes(chunks[i].bytes);
    RequireCuda(cudaMemcpy(bytes.data(), chunks[i].data, bytes.size(), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
    if (digests[i] != ComputeDigest(kSeed, bytes)) {
      Fail("the device's digest of chunk " + std::to_string(i) + " is not that of the host");
    }
  }
}

void MeasureConfig(const CudaParams& params, const Config& config, std::span<const std::byte> state,
                   Gpu* gpu, JudgedTable* table) {
  const std::vector<gpu::DeviceChunk> chunks = Cut(state, config);
  if (chunks.empty()) return table->NotRun(config.what(), "the state is smaller than a chunk");
  const uint64_t bytes = chunks.size() * (config.chunk_kib << 10);
  const auto digester = Must(gpu::DeviceDigester::Create(0, chunks.size()));
  const auto digest = [&] { Require(digester->Enqueue(kSeed, chunks, gpu->stream())); };
  // The host needs this long to hand over a batch. During that time the device must have work.
  const double lead = 1e-3 + 2 * Seconds(digest);
  Verify(chunks, Must(digester->Take()));

  std::vector<double> speeds, passes, ratios;
  for (int round = 0; round < params.rounds; ++round) {
    const double pass = gpu->ReadPass(state.first(bytes));
    const double time = gpu->Time(lead, digest);
    Require(digester->Take().status());
    speeds.push_back(static_cast<double>(bytes) / 1e9 / time);
    passes.push_back(static_cast<double>(bytes) / 1e9 / pass);
    ratios.push_back(pass / time);
  }
  const double ratio = Quantile(ratios, 0.5);
  const double pass = static_cast<double>(bytes) / 1e9 / Quantile(passes, 0.5);
  char measured[200];
  std::snprintf(measured, sizeof measured,
                "%.2f x (p1 %.2f), predicted %.2f: %.0f GB/s against %.0f, %zu chunks, %.2f GiB",
                ratio, Quantile(ratios, 0.01), pass / PredictDigests(pass), Quantile(speeds, 0.5),
                Quantile(passes, 0.5), chunks.size(), static_cast<double>(bytes) / kGiB);
  table->Judge(config.what(), measured, ratio >= config.target);
  table->AddSamples(config.what() + ": GB/s", speeds);
  table->AddSamples(config.what() + ": read pass GB/s", passes);
  table->AddSamples(config.what() + ": ratio", ratios);
}

}  // namespace

std::vector<PlannedRow> PlanDigests() {
  std::vector<PlannedRow> rows;
  for (const Config& config : kConfigs) rows.push_back({config.what(), config.target_text()});
  return rows;
}

void MeasureDigests(const CudaParams& params, Gpu* gpu, JudgedTable* table) {
  const std::span<const std::byte> state = gpu->TakeState(params.state_bytes);
  for (const Config& config : kConfigs) {
    MeasureConfig(params, config, config.is_small ? state.first(params.small_bytes) : state, gpu,
                  table);
  }
}

}  // namespace varve::internal::bench
