// SPDX-License-Identifier: Apache-2.0
//
// A group whose ranks are threads, each with a handle of its own. Every test ends with a full check
// of the root.
#pragma once

#include <array>
#include <fstream>
#include <functional>
#include <thread>

#include "store/format/group_file.h"
#include "store/group/attempt_names.h"
#include "store/group/group_store.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr auto kTimeout = std::chrono::minutes(2);
constexpr auto kShort = std::chrono::milliseconds(200);

// Returns what rank `rank` saves at a step: a tensor of which all ranks have a shard, and one of
// its own.
inline std::vector<TestTensor> ContentOf(uint32_t rank, uint64_t step) {
  return {NormalTensor("shared", {40 + rank, 5}, 100 * step + rank),
          RandomTensor("of rank " + std::to_string(rank), DType::kU8, {1000}, rank)};
}

class GroupStoreTest : public ::testing::Test {
 protected:
  void TearDown() override {
    ranks_.clear();
    if (expect_damage_ || HasFatalFailure()) return;
    const auto root = Store::Open(path());
    ASSERT_TRUE(root.ok()) << root.status().ToString();
    VARVE_ASSERT_OK((*root)->Reclaim().status());
    const auto check = (*root)->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, IsEmpty());
    ExpectNoDebris();
  }

  fs::path path() const { return folder_.path() / "root"; }

  // A start of the job.
  void Start(uint32_t num_ranks, std::chrono::milliseconds timeout = kTimeout) {
    ranks_.clear();
    const auto epoch = Group::StartEpoch(path(), num_ranks);
    ASSERT_TRUE(epoch.ok()) << epoch.status().ToString();
    epoch_ = *epoch;
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      ranks_.push_back(JoinRank(rank, timeout));
      ASSERT_NE(ranks_.back(), nullptr);
    }
  }

  std::unique_ptr<Store> JoinRank(uint32_t rank, std::chrono::milliseconds timeout = kTimeout) {
    auto store = Group::Join(path(), {.rank = rank, .epoch = epoch_, .timeout = timeout});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? *std::move(store) : nullptr;
  }

  static Result<SaveReport> SaveRank(Store* store, uint32_t rank, uint64_t step,
                                     const SaveOptions& options = {}) {
    VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step, options));
    const std::vector<TestTensor> content = ContentOf(rank, step);
    for (const TestTensor& tensor : content) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
    const std::string item = "item of " + std::to_string(rank);
    VARVE_RETURN_IF_ERROR(writer->PutBytes("loader", AsBytes(item)));
    TrainerProgress state;
    state.global_step = static_cast<int64_t>(step * 10 + rank);
    VARVE_RETURN_IF_ERROR(writer->SetTrainerProgress(state));
    VARVE_RETURN_IF_ERROR(writer->SetMetric("loss", static_cast<double>(step)));
    VARVE_RETURN_IF_ERROR(writer->AddTag("newest"));
    return writer->Commit();
  }

  // All ranks save. Returns the results.
  std::vector<Status> Save(uint64_t step, const SaveOptions& options = {}) {
    std::vector<Status> statuses(ranks_.size());
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        if (ranks_[rank] == nullptr) return;
        statuses[rank] = SaveRank(ranks_[rank].get(), rank, step, options).status();
      });
    }
    threads.clear();
    return statuses;
  }
  void SaveAll(uint64_t step, const SaveOptions& options = {}) {
    for (const Status& status : Save(step, options)) VARVE_EXPECT_OK(status);
  }

  static std::span<const std::byte> AsBytes(const std::string& s) {
    return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
  }

  // The checkpoint is what `num_ranks` ranks have saved.
  static void ExpectHolds(const Store& store, uint64_t step, uint32_t num_ranks,
                          const std::string& run = "main") {
    const auto reader = store.OpenCheckpoint(run, step);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    ExpectHolds(**reader, step, num_ranks);
  }
  static void ExpectHolds(const CheckpointReader& reader, uint64_t step, uint32_t num_ranks) {
    EXPECT_EQ(reader.info().num_tensors, 2 * num_ranks);
    const auto list = reader.List();
    ASSERT_TRUE(list.ok()) << list.status().ToString();
    EXPECT_EQ(list->size(), 2 * num_ranks);
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      for (const TestTensor& tensor : ContentOf(rank, step)) {
        const uint32_t shard = tensor.name == "shared" ? rank : 0;
        const auto info = reader.Find(tensor.name, shard);
        ASSERT_TRUE(info.ok()) << info.status().ToString();
        EXPECT_EQ(info->shape, tensor.shape);
        EXPECT_EQ(info->shard, shard);
        std::vector<std::byte> out(info->logical_bytes);
        VARVE_ASSERT_OK(reader.ReadMany(std::array{ReadRequest::Shard(tensor.name, shard, out)}));
        EXPECT_TRUE(out == tensor.bytes) << tensor.name << " of rank " << rank;
      }
    }
    EXPECT_EQ(reader.ReadTrainerProgress().value()->global_step, static_cast<int64_t>(step * 10));
    EXPECT_EQ(reader.ListBytes().value().size(), num_ranks);
  }

  std::vector<uint64_t> Steps(const Store& store, const std::string& run = "main") {
    std::vector<uint64_t> steps;
    for (const CheckpointInfo& info : store.ListCheckpoints(run).value()) {
      steps.push_back(info.id.step);
    }
    return steps;
  }

  std::set<std::string> Names(const std::string& folder) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path() / folder)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  // Members hold what the log names and nothing else, and so does the folder of catalogues.
  void ExpectNoDebris() {
    const auto root = GroupStore::OpenPath(path(), {}, /*for_writing=*/false);
    ASSERT_TRUE(root.ok()) << root.status().ToString();
    const GroupState state = (*root)->log()->With([](const GroupState& s) { return s; });
    std::set<std::string> members, catalogues;
    std::map<MemberId, std::set<AttemptId>> held;
    for (const auto& [id, member] : state.members) members.insert(MemberName(id));
    for (const auto& [number, attempt] : state.attempts) {
      EXPECT_TRUE(attempt.committed);
      catalogues.insert(std::to_string(number));
      for (const MemberId member : attempt.Members()) held[member].insert(number);
    }
    EXPECT_EQ(Names("members"), members);
    EXPECT_EQ(Names("catalogues"), catalogues);
    for (const auto& [id, member] : state.members) {
      const auto store = (*root)->MemberForReading(id);
      ASSERT_TRUE(store.ok()) << store.status().ToString();
      EXPECT_EQ(HeldAttempts(**store).value(), held[id]);
    }
  }

  TempFolder folder_;
  uint64_t epoch_ = 0;
  std::vector<std::unique_ptr<Store>> ranks_;
  bool expect_damage_ = false;
};

}  // namespace varve::internal::testing
