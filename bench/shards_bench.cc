// SPDX-License-Identifier: Apache-2.0
//
// shards_bench: what grows with the number of shards of a tensor, and what short runs cost. The
// proof of coverage is measured by the number of ranks, with the fitted order of growth. The
// restore of a tensor that was saved in columns is measured by the width of a column, on one
// thread. README.md explains the numbers.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "bench/state.h"
#include "bench/workplace.h"
#include "store/group/coverage_proof.h"
#include "varve/varve.h"

namespace varve::internal::bench {
namespace {

// How the ranks share a tensor.
enum class Cut { kRows, kColumns, kGrid, kFlat };

ShardLayout LayoutOf(Cut cut, const std::vector<int64_t>& shape, int64_t ranks, int64_t rank) {
  ShardLayout layout = ShardLayout::Whole(shape);
  const auto part = [](int64_t size, int64_t n, int64_t i) {
    return Segment{size * i / n, size * (i + 1) / n - size * i / n};
  };
  const int64_t side = 32;
  switch (cut) {
    case Cut::kRows:
      layout.axes[0] = {part(shape[0], ranks, rank)};
      break;
    case Cut::kColumns:
      layout.axes[1] = {part(shape[1], ranks, rank)};
      break;
    case Cut::kGrid:
      layout.axes[0] = {part(shape[0], ranks / side, rank / side)};
      layout.axes[1] = {part(shape[1], side, rank % side)};
      break;
    case Cut::kFlat:
      const Segment flat = part(shape[0] * shape[1], ranks, rank);
      layout.flat = Range{flat.begin, flat.begin + flat.length};
  }
  return Canonical(layout);
}

// `ranks` shards of each of `tensors`, no two tensors of one shape.
Catalogue MakeCatalogue(Cut cut, int64_t tensors, int64_t ranks) {
  Catalogue catalogue;
  catalogue.shards.reserve(static_cast<size_t>(tensors * ranks));
  for (int64_t t = 0; t < tensors; ++t) {
    const std::vector<int64_t> shape = {4096 + t, 4096};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      CatalogueShard shard{{.name = "t" + std::to_string(10000 + t)}, static_cast<uint32_t>(rank)};
      shard.layout = LayoutOf(cut, shape, ranks, rank);
      shard.shape = shard.layout->LocalShape();
      catalogue.shards.push_back(std::move(shard));
    }
  }
  return catalogue;
}

void ProofOfNewLayouts(benchmark::State& state, Cut cut, int64_t tensors) {
  const Catalogue catalogue = MakeCatalogue(cut, tensors, state.range(0));
  for (auto _ : state) {
    CoverageProof proof;
    Require(proof.Prove(catalogue));
  }
  state.SetComplexityN(state.range(0));
  state.SetItemsProcessed(state.iterations() * tensors * state.range(0));
}

// A save in which no layout has changed.
void ProofOfKnownLayouts(benchmark::State& state) {
  const Catalogue catalogue = MakeCatalogue(Cut::kRows, 16, state.range(0));
  CoverageProof proof;
  Require(proof.Prove(catalogue));
  for (auto _ : state) Require(proof.Prove(catalogue));
  state.SetComplexityN(state.range(0));
  state.SetItemsProcessed(state.iterations() * 16 * state.range(0));
}

// Sixteen ranks have saved `width` columns each. One reads the whole, 32 MiB in FP32.
void RestoreOfColumns(benchmark::State& state) {
  constexpr int64_t kRanks = 16, kElements = int64_t{8} << 20;
  const int64_t width = state.range(0), columns = kRanks * width;
  const std::vector<int64_t> shape = {kElements / columns, columns};
  Workplace place("bench-stores");
  StoreOptions options;
  options.num_threads = 1;
  const auto store =
      Must(Store::Create(place.NewPath("columns"), {.digest_seed = {}, .store = options}));
  const auto writer = Must(store->Begin(1, {.compression = Compression::kNone}));
  std::vector<std::vector<std::byte>> memory;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const ShardLayout layout = LayoutOf(Cut::kColumns, shape, kRanks, rank);
    const std::vector<int64_t> local = layout.LocalShape();
    FillNoise(Mix(1, static_cast<uint64_t>(rank)), memory.emplace_back(kElements / kRanks * 4));
    Require(writer->Put({.name = "w",
                         .dtype = DType::kF32,
                         .shape = local,
                         .data = memory.back().data(),
                         .shard = static_cast<uint32_t>(rank),
                         .layout = &layout}));
  }
  Must(writer->Commit());
  std::vector<std::byte> whole(kElements * 4);
  const auto reader = Must(store->OpenCheckpoint("main", 1));
  for (auto _ : state) Require(reader->Read("w", whole));
  const size_t row = static_cast<size_t>(width) * 4;
  for (size_t i = 0; i < memory.size() * memory[0].size() / row; ++i) {
    const std::byte* const saved = memory[i % kRanks].data() + i / kRanks * row;
    if (std::memcmp(whole.data() + i * row, saved, row) != 0) Fail("other bytes than were saved");
  }
  state.SetBytesProcessed(state.iterations() * kElements * 4);
}

BENCHMARK_CAPTURE(ProofOfNewLayouts, rows, Cut::kRows, 1)
    ->RangeMultiplier(4)
    ->Range(64, 4096)
    ->Complexity();
BENCHMARK_CAPTURE(ProofOfNewLayouts, columns, Cut::kColumns, 1)
    ->RangeMultiplier(4)
    ->Range(64, 4096)
    ->Complexity();
BENCHMARK_CAPTURE(ProofOfNewLayouts, grid, Cut::kGrid, 1)
    ->RangeMultiplier(4)
    ->Range(64, 4096)
    ->Complexity();
BENCHMARK_CAPTURE(ProofOfNewLayouts, flat, Cut::kFlat, 1)
    ->RangeMultiplier(4)
    ->Range(64, 4096)
    ->Complexity();
BENCHMARK_CAPTURE(ProofOfNewLayouts, rows_2892_tensors, Cut::kRows, 2892)
    ->Arg(1024)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(ProofOfKnownLayouts)->RangeMultiplier(4)->Range(64, 1024)->Complexity();
BENCHMARK(RestoreOfColumns)
    ->Arg(1)
    ->Arg(2)
    ->Arg(8)
    ->Arg(64)
    ->Arg(1024)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace varve::internal::bench

BENCHMARK_MAIN();
