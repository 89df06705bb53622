// SPDX-License-Identifier: Apache-2.0
//
// A group of ranks that are threads, each with its member. All save a row of one tensor. It
// measures joining, saving, reading one row or all, dropping, and the save after somebody else has
// dropped many steps.
#include <algorithm>
#include <array>
#include <barrier>
#include <memory>
#include <thread>

#include "bench/measure.h"
#include "bench/scale/axes.h"
#include "bench/state.h"
#include "bench/workplace.h"
#include "varve/group.h"

namespace varve::internal::bench {
namespace {

namespace fs = std::filesystem;

constexpr Growth kLinear{1, 1};
constexpr Growth kConstant{0, 0};
constexpr int64_t kColumns = 32;
constexpr StoreOptions kOneThread{.num_threads = 1};

class Ranks {
 public:
  Ranks(const fs::path& root, uint32_t num_ranks) : root_(root), stores_(num_ranks) {
    const uint64_t epoch = Must(Group::StartEpoch(root, num_ranks));
    ForEach([&](uint32_t rank) {
      stores_[rank] = Must(Group::Join(
          root_,
          {.rank = rank, .epoch = epoch, .timeout = std::chrono::hours(1), .store = kOneThread}));
    });
  }

  void Save(uint64_t step) {
    ForEach([&](uint32_t rank) {
      std::array<std::byte, kColumns * 4> row;
      FillNoise(Mix(step, rank), row);
      const ShardLayout layout = RowOf(rank);
      const std::vector<int64_t> shape = layout.LocalShape();
      const auto writer = Must(stores_[rank]->Begin(step));
      Require(
          writer->Put({.name = "weight", .shape = shape, .data = row.data(), .layout = &layout}));
      Must(writer->Commit());
    });
  }
  ShardLayout RowOf(uint32_t rank) const {
    ShardLayout layout = ShardLayout::Whole({static_cast<int64_t>(stores_.size()), kColumns});
    layout.axes[0] = {{.begin = rank, .length = 1}};
    return layout;
  }
  Store* store(uint32_t rank) const { return stores_[rank].get(); }

 private:
  template <typename Body>
  void ForEach(const Body& body) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < stores_.size(); ++rank) {
      threads.emplace_back([&body, rank] { body(rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  const fs::path root_;
  std::vector<std::unique_ptr<Store>> stores_;
};

void ReadRow(const Store& store, const ShardLayout& row, uint64_t step) {
  std::array<std::byte, kColumns * 4> out, expected;
  FillNoise(Mix(step, 0), expected);
  const ReadRequest request = ReadRequest::Region("weight", row, out);
  Require(Must(store.OpenCheckpoint("main", step))->ReadMany({&request, 1}));
  if (out != expected) Fail("a row is not restored as it was saved");
}

void MeasureSize(uint64_t n, Workplace* place, Curves* curves) {
  constexpr uint64_t kSaves = 4;
  const auto size = static_cast<double>(n);
  const fs::path root = place->NewPath("ranks");
  const auto add = [&](const char* what, Growth growth, const Cost& cost) {
    curves->Add(what, growth, size, cost);
  };
  std::unique_ptr<Ranks> ranks;
  add("join, all ranks", kLinear,
      MeasureCost([&] { ranks = std::make_unique<Ranks>(root, static_cast<uint32_t>(n)); }));
  ranks->Save(0);
  add("save, all ranks", kLinear, MeasureCost([&] {
                                    for (uint64_t s = 1; s < kSaves; ++s) ranks->Save(s);
                                  }).Each(kSaves - 1));
  add("load of its own row by a rank", kConstant,
      MeasureCost([&] { ReadRow(*ranks->store(0), ranks->RowOf(0), 1); }));
  const ShardLayout row = ranks->RowOf(0);
  ranks.reset();
  std::unique_ptr<Store> store;
  add("open for reading", kConstant,
      MeasureCost([&] { store = Must(Store::OpenForReading(root, kOneThread)); }));
  add("load of one row", kConstant, MeasureCost([&] { ReadRow(*store, row, 1); }));
  add("load of all rows", kLinear, MeasureCost([&] {
        std::vector<std::byte> out(n * kColumns * 4);
        Require(Must(store->OpenCheckpoint("main", 1))->Read("weight", out));
      }));
  store.reset();
  store = Must(Store::Open(root, kOneThread));
  const CheckpointId first{"main", 0};
  add("drop, no rank is there", kLinear, MeasureCost([&] { Must(store->Drop({&first, 1})); }));
  store.reset();
  place->Remove(root);
}

}  // namespace

void MeasureRanks(const Plan& plan, Curves* curves) {
  Workplace place(plan.folder);
  for (const uint64_t n : plan.sizes) MeasureSize(n, &place, curves);
}

void MeasureSweep(const Plan& plan, Curves* curves) {
  Workplace place(plan.folder);
  for (const uint64_t n : plan.sizes) {
    const fs::path root = place.NewPath("sweep");
    Ranks ranks(root, 2);
    std::vector<CheckpointId> dropped;
    for (uint64_t step = 0; step <= n; ++step) ranks.Save(step);
    for (uint64_t step = 0; step < n; ++step) dropped.push_back({"main", step});
    Must(Must(Store::Open(root))->Drop(dropped));
    // Each rank sweeps in its own saves: the worst of the next three.
    Cost most;
    for (uint64_t step = n + 1; step < n + 4; ++step) {
      most.TakeMost(MeasureCost([&] { ranks.Save(step); }));
    }
    curves->Add("save after so many were dropped", kConstant, static_cast<double>(n), most);
  }
}

}  // namespace varve::internal::bench
