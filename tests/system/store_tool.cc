// SPDX-License-Identifier: Apache-2.0
//
// store_tool STORE [PLAN]: holds a store open for writing and obeys commands on standard input, one
// a line. It answers each with one line, "ok ..." or the error. PLAN says what the steps hold
// (ParsePlan).
//
//   save STEP CONTENT | drop STEP | reclaim | verify STEP | shards STEP
//
// `shards` saves "w", FP32 [10, 6] of rising values from the step's number on, in four shards: its
// columns in pairs, the last pair of padding. It also saves "b", FP32 [4], in two replicas.
//
// The first line says whether the store could be opened. Ends at the end of its input.
#include <iostream>
#include <sstream>
#include <string>

#include "tests/support/step_content.h"

namespace varve::internal::testing {
namespace {

std::string Answer(const Status& status) { return status.ok() ? "ok" : status.ToString(); }

std::string Save(Store* store, const ContentPlan& plan, uint64_t step, uint64_t content) {
  const auto report = SaveContent(store, plan, step, content);
  if (!report.ok()) return Answer(report.status());
  return "ok " + std::to_string(report->stored_bytes);
}

std::string Drop(Store* store, uint64_t step) {
  const CheckpointId id{"main", step};
  const auto report = store->Drop({&id, 1});
  if (!report.ok()) return Answer(report.status());
  return "ok " + std::to_string(report->reclaim.freed_bytes);
}

std::string Verify(const Store& store, const ContentPlan& plan, uint64_t step) {
  const auto reader = store.OpenCheckpoint("main", step);
  if (!reader.ok()) return Answer(reader.status());
  return Answer(VerifyContent(**reader, plan));
}

Status SaveShards(Store* store, uint64_t step) {
  VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step));
  std::vector<std::vector<float>> data;
  for (uint32_t k = 0; k < 4; ++k) {
    const int64_t column = int64_t{2} * k;
    ShardLayout layout = ShardLayout::Whole({10, 6});
    layout.axes[1] = {{column, 2}};
    if (k == 3) layout.axes[1] = {{.length = 2, .is_padding = true}};
    std::vector<float>& shard = data.emplace_back();
    for (int64_t i = 0; i < 20; ++i) {
      const int64_t place = i / 2 * 6 + column + i % 2;
      shard.push_back(static_cast<float>(static_cast<int64_t>(step) + place));
    }
    VARVE_RETURN_IF_ERROR(writer->Put({.name = "w",
                                       .shape = std::vector<int64_t>{10, 2},
                                       .data = shard.data(),
                                       .shard = k,
                                       .layout = &layout}));
  }
  const ShardLayout whole = ShardLayout::Whole({4});
  for (uint32_t k = 0; k < 2; ++k) {
    VARVE_RETURN_IF_ERROR(writer->Put({.name = "b",
                                       .shape = whole.global_shape,
                                       .data = data[0].data(),
                                       .shard = k,
                                       .layout = &whole}));
  }
  VARVE_RETURN_IF_ERROR(writer->SetTopology({.tp = 4, .world_size = 4}));
  return writer->Commit().status();
}

std::string Obey(Store* store, const ContentPlan& plan, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  uint64_t step = 0;
  uint64_t content = 0;
  words >> verb >> step >> content;
  if (verb == "save") return Save(store, plan, step, content);
  if (verb == "drop") return Drop(store, step);
  if (verb == "verify") return Verify(*store, plan, step);
  if (verb == "shards") return Answer(SaveShards(store, step));
  if (verb == "reclaim") return Answer(store->Reclaim().status());
  return "unknown verb: " + verb;
}

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  const ContentPlan plan = argc > 2 ? ParsePlan(argv[2]) : ContentPlan();
  const auto store = Store::OpenOrCreate(argv[1]);
  std::cout << Answer(store.status()) << std::endl;
  if (!store.ok()) return 1;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Obey(store->get(), plan, line) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) { return varve::internal::testing::Main(argc, argv); }
