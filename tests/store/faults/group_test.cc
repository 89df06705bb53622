// SPDX-License-Identifier: Apache-2.0
//
// A group of one rank on a disk that is full or fails at each call. Its records and catalogues are
// files of varve's own.
#include "varve/group.h"

#include "tests/store/faults/sweep.h"

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
      before_.Put({"main", step}, ContentOfStep(step));
    }
    store_.reset();
    fs::rename(path(), template_path());
  }

  Status Join() {
    store_.reset();
    VARVE_ASSIGN_OR_RETURN(const uint64_t epoch, Group::StartEpoch(path(), 1));
    VARVE_ASSIGN_OR_RETURN(
        store_,
        Group::Join(path(), {.rank = 0, .epoch = epoch, .timeout = std::chrono::seconds(60)}));
    return Status::Ok();
  }

  Status SaveStep(uint64_t step) { return SaveContentOf(store_.get(), {"main", step}, step % 16); }

  // As another process does, beside the rank.
  Status Collect(const std::function<Status(Store*)>& operation) {
    VARVE_ASSIGN_OR_RETURN(const auto collector, Store::Open(path()));
    return operation(collector.get());
  }

  void Start() {
    store_.reset();
    fs::remove_all(path());
    fs::copy(template_path(), path(), fs::copy_options::recursive);
    VARVE_ASSERT_OK(Join());
  }

  Scenario OfGroup(const Operation& operation, const std::function<void(State*)>& change) {
    State after = before_;
    change(&after);
    return {[this] { Start(); }, operation,
            [=, this](const Status& status) { return Judge(operation, status, after); }};
  }

  std::string Judge(const Operation& operation, const Status& status, State after) {
    {
      const auto reader = Store::OpenForReading(path());
      if (!reader.ok()) return "reading: " + reader.status().ToString();
      const std::string fault =
          CheckState(**reader, status.ok() ? std::vector{after} : std::vector{before_, after});
      if (!fault.empty()) return "reading: " + fault;
    }
    const Status again = status.ok() ? status : operation();
    if (!again.ok() && again.code() != StatusCode::kAlreadyExists &&
        again.code() != StatusCode::kNotFound) {
      return "the operation again: " + again.ToString();
    }
    std::string fault = CheckState(*store_, {after});
    if (!fault.empty()) return fault;
    if (const Status saved = SaveStep(100); !saved.ok()) {
      return "a save after it: " + saved.ToString();
    }
    after.Put({"main", 100}, ContentOfStep(100 % 16));
    if (const Status joined = Join(); !joined.ok()) return "joining again: " + joined.ToString();
    fault = CheckState(*store_, {after});
    if (fault.empty()) fault = CheckClean(*store_);
    if (!fault.empty()) return "joined again: " + fault;
    const Status reclaimed =
        Collect([](Store* store) { return store->Reclaim({.all = true}).status(); });
    if (!reclaimed.ok()) return "a reclaim after it: " + reclaimed.ToString();
    fault = CheckState(*store_, {after});
    return fault.empty() ? CheckClean(*store_) : fault;
  }

  State before_;

 private:
  fs::path template_path() const { return folder_.path() / "template"; }
};

TEST_F(GroupFaultsTest, Join) {
  SweepAll(OfGroup([this] { return Join(); }, [](State*) {}));
}

TEST_F(GroupFaultsTest, Save) {
  SweepAll(OfGroup([this] { return SaveStep(4); },
                   [](State* state) {
                     state->Put({"main", 4}, ContentOfStep(4));
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
