// SPDX-License-Identifier: Apache-2.0
//
// Power cuts while two ranks of a group save, and while a collector tags and drops.
#include "varve/group.h"

#include <algorithm>
#include <thread>

#include "tests/store/power_cut/driver.h"
#include "tests/store/power_cut/judge.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Ranks = std::vector<std::unique_ptr<Store>>;

constexpr uint32_t kNumRanks = 2;

Result<Ranks> Join(const fs::path& root) {
  VARVE_ASSIGN_OR_RETURN(const uint64_t epoch, Group::StartEpoch(root, kNumRanks));
  Ranks ranks;
  for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
    VARVE_ASSIGN_OR_RETURN(
        auto store,
        Group::Join(root, {.rank = rank, .epoch = epoch, .timeout = std::chrono::seconds(60)}));
    ranks.push_back(std::move(store));
  }
  return ranks;
}

std::vector<TestTensor> ContentOf(uint32_t rank, uint64_t step) {
  const std::string name = std::to_string(rank);
  return {RandomTensor("a" + name, DType::kU8, {9000}, 100 * step + rank),
          RandomTensor("b" + name, DType::kU8, {9000}, rank)};
}

Status SaveOfRank(Store* store, uint32_t rank, uint64_t step) {
  VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step, {}));
  const std::vector<TestTensor> tensors = ContentOf(rank, step);
  for (const TestTensor& tensor : tensors) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
  return writer->Commit().status();
}

Status SaveAll(const Ranks& ranks, uint64_t step) {
  std::vector<Status> statuses(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      threads.emplace_back(
          [&, rank] { statuses[rank] = SaveOfRank(ranks[rank].get(), rank, step); });
    }
  }
  for (const Status& status : statuses) VARVE_RETURN_IF_ERROR(status);
  return Status::Ok();
}

// The operations of the workload, each of which is recorded.
class GroupWorkload {
 public:
  explicit GroupWorkload(const fs::path& folder) : root_(folder / "root"), recorder_(folder) {}

  Recorded Run(const fs::path& image) {
    JoinRanks();
    for (const uint64_t step : {1, 2, 3}) Save(step);
    Collect(
        "tag",
        [](Store* store) {
          return store->SetTag({"main", 3}, "t");
        },
        [&] {
          recorder_.now.tags[{"main", "t"}] = 3;
        });
    const CheckpointId second{"main", 2};
    Collect(
        "drop",
        [&](Store* store) {
          return store->Drop({&second, 1}, {}).status();
        },
        [&] {
          recorder_.now.steps.erase({"main", 2});
        });
    Save(4);
    JoinRanks();
    Save(5);
    ranks_.clear();
    return recorder_.Finish(image);
  }

 private:
  void JoinRanks() {
    recorder_.Run(
        "join",
        [&]() -> Status {
          ranks_.clear();
          VARVE_ASSIGN_OR_RETURN(ranks_, Join(root_));
          return Status::Ok();
        },
        [&] { recorder_.now.exists = true; });
  }
  void Save(uint64_t step) {
    recorder_.Run(
        "save " + std::to_string(step), [&] { return SaveAll(ranks_, step); },
        [&] {
          std::vector<TestTensor> all;
          for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
            for (TestTensor& tensor : ContentOf(rank, step)) all.push_back(std::move(tensor));
          }
          recorder_.now.Put({"main", step}, std::move(all));
        });
  }
  void Collect(const std::string& name, const std::function<Status(Store*)>& operation,
               const std::function<void()>& change) {
    recorder_.Run(
        name,
        [&]() -> Status {
          VARVE_ASSIGN_OR_RETURN(const auto collector, Store::Open(root_));
          return operation(collector.get());
        },
        change);
  }

  const fs::path root_;
  Recorder recorder_;
  Ranks ranks_;
};

class GroupPowerCutTest : public PowerCutTest {
 protected:
  void SetUp() override { Record<GroupWorkload>(); }

  std::string JudgeGroup(const fs::path& root, const Moment& moment) const {
    const std::vector<State> allowed = AllowedStates(recorded_.states, moment);
    const bool may_lack = MayLackStore(allowed);
    if (!may_lack) {
      const auto reader = Store::OpenForReading(root);
      if (!reader.ok()) return "reading: " + reader.status().ToString();
      const std::string fault = CheckState(**reader, allowed);
      if (!fault.empty()) return "reading: " + fault;
    }
    {
      const auto ranks = Join(root);
      if (!ranks.ok()) return "joining: " + ranks.status().ToString();
      std::string fault = CheckState(*(*ranks)[0], allowed);
      if (!may_lack && !fault.empty()) return fault;
      const Status saved = SaveAll(*ranks, 1000);
      if (!saved.ok()) return "a save after it: " + saved.ToString();
    }
    const auto store = Store::Open(root);
    if (!store.ok()) return "opening: " + store.status().ToString();
    const auto reclaimed = (*store)->Reclaim();
    if (!reclaimed.ok()) return "a reclaim after it: " + reclaimed.status().ToString();
    return CheckClean(**store);
  }

  Judge judge() {
    return [this](const fs::path& folder, const Moment& moment) {
      return JudgeGroup(folder / "root", moment);
    };
  }
};

TEST_F(GroupPowerCutTest, NothingIsLost) { ExpectNoFaults(recorded_, judge(), 31); }

TEST_F(GroupPowerCutTest, PlantedMistakesAreFound) {
  const auto find = [&](const std::string& mistake, const Plant& plant) {
    ExpectFound(recorded_, judge(), mistake, plant);
  };
  find("records of the log are not synced",
       WithoutSyncs([](const DiskOp& op) { return op.path.starts_with("root/log/"); }));
  find("the folder of the log is not synced", WithoutSyncs(Folder("root/log")));
  find("catalogues are not synced", WithoutSyncs(Path("root/catalogues/")));
  find("the manifests of members are not synced", WithoutSyncs(Path("/db/MANIFEST-")));
}

}  // namespace
}  // namespace varve::internal::testing
