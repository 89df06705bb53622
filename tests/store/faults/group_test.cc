// SPDX-License-Identifier: Apache-2.0
//
// A group of one rank, and one of two that save at a time, on a disk that is full or fails at each
// call. Its records and catalogues are files of varve's own.
#include "varve/group.h"

#include <thread>

#include "tests/store/faults/sweep.h"
#include "tests/store/model/copy_folder.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

class GroupFaultsTest : public FaultSweepTest {
 protected:
  using Operation = std::function<Status()>;

  // Each round starts from a group with steps 1 to 3.
  void SetUp() override {
    FaultSweepTest::SetUp();
    VARVE_ASSERT_OK(Join());
    before_.exists = true;
    for (const uint64_t step : {1, 2, 3}) {
      VARVE_ASSERT_OK(SaveStep(step));
      before_.Put({"main", step}, ContentOf(step));
    }
    Leave();
    fs::rename(path(), template_path());
  }
  void TearDown() override { Leave(); }

  Status Join() {
    Leave();
    VARVE_ASSIGN_OR_RETURN(ranks_, JoinAll(path()));
    return Status::Ok();
  }
  void Leave() { ranks_.clear(); }

  // Each rank saves its part.
  Status SaveStep(uint64_t step) {
    std::vector<Status> statuses(num_ranks_);
    {
      std::vector<std::jthread> threads;
      for (uint32_t rank = 1; rank < num_ranks_; ++rank) {
        threads.emplace_back([&, rank] { statuses[rank] = SavePart(rank, step); });
      }
      statuses[0] = SavePart(0, step);
    }
    for (const Status& status : statuses) VARVE_RETURN_IF_ERROR(status);
    return Status::Ok();
  }
  std::vector<TestTensor> ContentOf(uint64_t step) const {
    std::vector<TestTensor> all;
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      for (TestTensor& tensor : PartOf(rank, step)) all.push_back(std::move(tensor));
    }
    return all;
  }

  // As another process does, beside the rank.
  Status Collect(const std::function<Status(Store*)>& operation) {
    VARVE_ASSIGN_OR_RETURN(const auto collector, Store::Open(path()));
    return operation(collector.get());
  }

  void Start() {
    Leave();
    fs::remove_all(path());
    fs::copy(template_path(), path(), fs::copy_options::recursive);
    // While one rank cannot say that it has failed, the other waits.
    if (num_ranks_ > 1) patience_ = std::chrono::seconds(IsFullSize() ? 2 : 5);
    VARVE_ASSERT_OK(Join());
  }

  Scenario OfGroup(const Operation& operation, const std::function<void(State*)>& change) {
    State after = before_;
    change(&after);
    return {[this] { Start(); }, operation,
            [=, this](const Status& status) { return Judge(operation, status, after); }};
  }

  std::string Judge(const Operation& operation, const Status& status, State after) {
    const std::vector<State> allowed =
        status.ok() ? std::vector{after} : std::vector{before_, after};
    std::string fault = JudgeDisk(allowed);
    if (!fault.empty()) return fault;
    const auto reader = Store::OpenForReading(path());
    if (!reader.ok()) return "reading: " + reader.status().ToString();
    fault = CheckState(**reader, allowed);
    if (!fault.empty()) return "reading: " + fault;
    fault = Retry(operation, status);
    if (fault.empty()) fault = CheckState(store(), {after});
    if (!fault.empty()) return fault;
    patience_ = kPatience;
    if (const Status joined = Join(); !joined.ok()) return "joining: " + joined.ToString();
    if (const Status saved = SaveStep(100); !saved.ok()) {
      return "a save after it: " + saved.ToString();
    }
    after.Put({"main", 100}, ContentOf(100));
    if (const Status joined = Join(); !joined.ok()) return "joining again: " + joined.ToString();
    fault = CheckState(store(), {after});
    if (fault.empty()) fault = CheckClean(store());
    if (!fault.empty()) return "joined again: " + fault;
    const Status reclaimed =
        Collect([](Store* store) { return store->Reclaim({.all = true}).status(); });
    if (!reclaimed.ok()) return "a reclaim after it: " + reclaimed.ToString();
    fault = CheckState(store(), {after});
    return fault.empty() ? CheckClean(store()) : fault;
  }

  State before_;
  uint32_t num_ranks_ = 1;

 private:
  using Ranks = std::vector<std::unique_ptr<Store>>;

  Result<Ranks> JoinAll(const fs::path& root) const {
    VARVE_ASSIGN_OR_RETURN(const uint64_t epoch, Group::StartEpoch(root, num_ranks_));
    Ranks ranks;
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      VARVE_ASSIGN_OR_RETURN(
          auto store, Group::Join(root, {.rank = rank, .epoch = epoch, .timeout = patience_}));
      ranks.push_back(std::move(store));
    }
    return ranks;
  }

  static std::vector<TestTensor> PartOf(uint32_t rank, uint64_t step) {
    if (rank == 0) return ContentOfStep(step % 16);
    return {RandomTensor("of" + std::to_string(rank), DType::kU8, {3000}, 100 * step + rank)};
  }
  Status SavePart(uint32_t rank, uint64_t step) {
    VARVE_ASSIGN_OR_RETURN(auto writer, ranks_[rank]->Begin(step));
    const std::vector<TestTensor> part = PartOf(rank, step);
    for (const TestTensor& tensor : part) VARVE_RETURN_IF_ERROR(writer->Put(tensor.view()));
    return writer->Commit().status();
  }

  Store& store() const { return *ranks_[0]; }

  // What all processes leave that die now. A retry or a save could mend it.
  std::string JudgeDisk(const std::vector<State>& allowed) const {
    const fs::path copy = folder_.path() / "died";
    if (const Status copied = CopyAtOneMoment(path(), copy); !copied.ok()) return copied.ToString();
    std::string fault;
    {
      const auto reader = Store::OpenForReading(copy);
      if (!reader.ok()) return "reading a copy: " + reader.status().ToString();
      fault = CheckState(**reader, allowed);
      if (!fault.empty()) return "reading a copy: " + fault;
    }
    {
      const auto ranks = JoinAll(copy);
      if (!ranks.ok()) return "joining a copy: " + ranks.status().ToString();
      fault = CheckState(*(*ranks)[0], allowed);
      if (fault.empty()) fault = CheckClean(*(*ranks)[0]);
    }
    fs::remove_all(copy);
    return fault.empty() ? "" : "a copy: " + fault;
  }

  // If the fault also keeps rank 0 from giving its attempt up, another rank may take part in it
  // while rank 0 has begun a new one, until the patience of both ends. Then they find each other.
  std::string Retry(const Operation& operation, const Status& status) {
    if (status.ok()) return "";
    const int most = num_ranks_ > 1 ? 4 : 1;  // two, unless a patience ends on a busy machine
    Status again;
    for (int i = 0; i < most; ++i) {
      again = operation();
      const bool is_there =
          again.code() == StatusCode::kAlreadyExists || again.code() == StatusCode::kNotFound;
      if (again.ok() || is_there) return "";
    }
    return "the operation again: " + again.ToString();
  }

  fs::path template_path() const { return folder_.path() / "template"; }

  static constexpr std::chrono::seconds kPatience{60};

  Ranks ranks_;
  std::chrono::seconds patience_ = kPatience;
};

class TwoRanksFaultsTest : public GroupFaultsTest {
 protected:
  TwoRanksFaultsTest() { num_ranks_ = 2; }
};

TEST_F(GroupFaultsTest, Join) {
  SweepAll(OfGroup([this] { return Join(); }, [](State*) {}));
}

TEST_F(GroupFaultsTest, Save) {
  SweepAll(OfGroup([this] { return SaveStep(4); },
                   [this](State* state) {
                     state->Put({"main", 4}, ContentOf(4));
                   }));
}

TEST_F(TwoRanksFaultsTest, Join) {
  SweepAll(OfGroup([this] { return Join(); }, [](State*) {}));
}

TEST_F(TwoRanksFaultsTest, Save) {
  SweepAll(OfGroup([this] { return SaveStep(4); },
                   [this](State* state) {
                     state->Put({"main", 4}, ContentOf(4));
                   }));
}

TEST_F(GroupFaultsTest, Tag) {
  SweepAll(OfGroup(
      [this] { return Collect([](Store* store) {
                 return store->SetTag({"main", 2}, "good");
               }); },
      [](State* state) {
        state->tags[{"main", "good"}] = 2;
      }));
}

TEST_F(GroupFaultsTest, Drop) {
  SweepAll(OfGroup(
      [this] {
        return Collect([](Store* store) {
          const CheckpointId id{"main", 2};
          return store->Drop({&id, 1}, {}).status();
        });
      },
      [](State* state) {
        state->steps.erase({"main", 2});
      }));
}

}  // namespace
}  // namespace varve::internal::testing
