// SPDX-License-Identifier: Apache-2.0
//
// group_saver ROOT STEP TP DP [NAME:ELEMENT...]: TP * DP ranks, which are threads, save one step:
//
//   rows     FP32 [10, 6], on each tensor-parallel rank some of its rows
//   columns  FP32 [6, 11], some of its columns
//   flat     FP32 [7, 9], on every rank a slice of its elements, the last ones with padding
//   norm     FP32 [5], on every rank
//
// The elements of each tensor count up from 0. The named elements are -1.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/shard_reference.h"
#include "varve/varve.h"

namespace varve::internal::testing {
namespace {

struct Global {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Model = std::map<std::string, Global>;

Model MakeModel() {
  Model model = {{"rows", {{10, 6}, {}}},
                 {"columns", {{6, 11}, {}}},
                 {"flat", {{7, 9}, {}}},
                 {"norm", {{5}, {}}}};
  for (auto& [name, global] : model) {
    const int64_t size = ShardLayout::Whole(global.shape).NumGlobal();
    for (int64_t i = 0; i < size; ++i) global.values.push_back(static_cast<float>(i));
  }
  return model;
}

Result<ShardLayout> LayoutOf(const std::string& name, ShardLayout whole, RankOf tp, RankOf world) {
  if (name == "rows") return SplitChunks(std::move(whole), 0, tp);
  if (name == "columns") return SplitChunks(std::move(whole), 1, tp);
  if (name == "flat") return SliceFlat(std::move(whole), world);
  return whole;
}

Status SaveRank(const std::filesystem::path& root, uint64_t epoch, uint64_t step, RankOf tp,
                RankOf world, const Model& model) {
  VARVE_ASSIGN_OR_RETURN(
      const auto store,
      Group::Join(root, {.rank = static_cast<uint32_t>(world.rank), .epoch = epoch}));
  VARVE_ASSIGN_OR_RETURN(const auto writer, store->Begin(step));
  std::vector<std::vector<float>> parts;  // until Commit
  for (const auto& [name, global] : model) {
    VARVE_ASSIGN_OR_RETURN(const ShardLayout layout,
                           LayoutOf(name, ShardLayout::Whole(global.shape), tp, world));
    std::vector<float>& part = parts.emplace_back();
    for (const int64_t place : PlacesOf(layout)) {
      part.push_back(place == kPaddingPlace ? 0 : global.values[static_cast<size_t>(place)]);
    }
    VARVE_RETURN_IF_ERROR(writer->Put(
        {.name = name, .shape = layout.LocalShape(), .data = part.data(), .layout = &layout}));
  }
  const auto ranks = [](int64_t number) { return static_cast<uint32_t>(number); };
  VARVE_RETURN_IF_ERROR(writer->SetTopology({.dp = ranks(world.ranks / tp.ranks),
                                             .tp = ranks(tp.ranks),
                                             .world_size = ranks(world.ranks)}));
  return writer->Commit().status();
}

int Main(int argc, char** argv) {
  if (argc < 5) {
    std::fputs("usage: group_saver ROOT STEP TP DP [NAME:ELEMENT...]\n", stderr);
    return 2;
  }
  const auto number = [](const std::string& s) { return std::strtoll(s.c_str(), nullptr, 10); };
  const auto step = static_cast<uint64_t>(number(argv[2]));
  const int64_t tp = number(argv[3]), num_ranks = tp * number(argv[4]);
  Model model = MakeModel();
  for (int i = 5; i < argc; ++i) {
    const std::string edit = argv[i];
    const size_t colon = edit.find(':');
    const auto element = static_cast<size_t>(number(edit.substr(colon + 1)));
    model.at(edit.substr(0, colon)).values.at(element) = -1;
  }
  const auto epoch = Group::StartEpoch(argv[1], static_cast<uint32_t>(num_ranks));
  std::vector<Status> statuses(static_cast<size_t>(num_ranks), epoch.status());
  std::vector<std::jthread> ranks;
  for (int64_t rank = 0; epoch.ok() && rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      statuses[static_cast<size_t>(rank)] =
          SaveRank(argv[1], *epoch, step, {rank % tp, tp}, {rank, num_ranks}, model);
    });
  }
  ranks.clear();
  for (const Status& status : statuses) {
    if (status.ok()) continue;
    std::fprintf(stderr, "group_saver: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) { return varve::internal::testing::Main(argc, argv); }
