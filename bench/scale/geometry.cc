// SPDX-License-Identifier: Apache-2.0
//
// Shards of tensors. It measures the proof of a catalogue that shards hold all of each tensor, and
// once. It also measures one thread that reads a whole tensor that was saved in columns.
#include <algorithm>
#include <memory>

#include "bench/scale/axes.h"
#include "bench/state.h"
#include "bench/workplace.h"
#include "store/group/coverage_proof.h"

namespace varve::internal::bench {
namespace {

constexpr uint64_t kTensors = 32;  // of a catalogue
constexpr int64_t kRows = 2048;    // of a tensor that is read whole
constexpr int64_t kColumns = 2048;

// Tensors of [n, 8], a row a rank.
Catalogue MakeCatalogue(uint64_t n) {
  Catalogue catalogue;
  for (uint64_t t = 0; t < kTensors; ++t) {
    for (uint32_t rank = 0; rank < n; ++rank) {
      ShardLayout layout = ShardLayout::Whole({static_cast<int64_t>(n), 8});
      layout.axes[0] = {{.begin = rank, .length = 1}};
      catalogue.shards.push_back({{.name = "layers." + std::to_string(t),
                                   .shape = layout.LocalShape(),
                                   .layout = Canonical(layout)},
                                  rank});
    }
  }
  catalogue.Sort();
  return catalogue;
}

// The tensor, `parts` shards of equally many columns.
void SaveColumns(Store* store, const std::vector<std::byte>& tensor, int64_t parts) {
  const int64_t width = kColumns / parts;
  const std::vector<int64_t> shape = {kRows, width}, strides = {kColumns, 1};
  const auto writer = Must(store->Begin(1));
  for (int64_t part = 0; part < parts; ++part) {
    ShardLayout layout = ShardLayout::Whole({kRows, kColumns});
    layout.axes[1] = {{.begin = part * width, .length = width}};
    Require(writer->Put({.name = "weight",
                         .shape = shape,
                         .data = tensor.data() + part * width * 4,
                         .strides = strides,
                         .shard = static_cast<uint32_t>(part),
                         .layout = &layout}));
  }
  Must(writer->Commit());
}

}  // namespace

void MeasureCoverage(const Plan& plan, Curves* curves) {
  for (const uint64_t n : plan.sizes) {
    const Catalogue catalogue = MakeCatalogue(n);
    CoverageProof proof;
    const auto prove = [&] { Require(proof.Prove(catalogue)); };
    const auto size = static_cast<double>(n);
    curves->Add("proof of 32 tensors", {1, 1}, size, MeasureCost(prove));
    curves->Add("the same once more", {1, 1}, size, MeasureCost(prove));
  }
}

void MeasureRecuts(const Plan& plan, Curves* curves) {
  Workplace place(plan.folder);
  std::vector<std::byte> tensor(kRows * kColumns * 4), out(tensor.size());
  FillNoise(1, tensor);
  for (const uint64_t n : plan.sizes) {
    const auto path = place.NewPath("recut");
    const auto store =
        Must(Store::Create(path, {.store = {.compression = Compression::kNone, .num_threads = 1}}));
    SaveColumns(store.get(), tensor, static_cast<int64_t>(n));
    const auto reader = Must(store->OpenCheckpoint("main", 1));
    Require(reader->Read("weight", out));
    if (out != tensor) Fail("columns are not put together as they were cut");
    curves->Add("16 MiB of so many columns, whole", {0, 0}, static_cast<double>(n),
                MeasureCost([&] { Require(reader->Read("weight", out)); }));
  }
}

}  // namespace varve::internal::bench
