// SPDX-License-Identifier: Apache-2.0
//
// Power cuts while requests are handed in, applied and answered. A request that was handed in is
// there until it is applied. Once that is known, no cut brings it back: it would be applied to what
// was saved since.
#include "store/ops/inbox.h"

#include <algorithm>
#include <iostream>
#include <set>

#include "tests/store/power_cut/driver.h"
#include "tests/support/power_cut.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Kind = DiskOp::Kind;

// Each request has two marks: Put has returned, and Finish has.
class InboxPowerCutTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path disk = folder_.path() / "disk";
    fs::create_directories(disk / "store");
    DiskRecord record(disk);
    const Inbox inbox(disk / "store");
    for (const bool wants_answer : {true, false, true}) {
      const auto name = inbox.Put({DropRequest{{{"main", 1}}}, wants_answer});
      VARVE_ASSERT_OK(name.status());
      record.Mark(2 * names_.size());
      for (const Inbox::Waiting& waiting : inbox.List().value()) {
        VARVE_ASSERT_OK(inbox.Start(waiting).status());
        VARVE_ASSERT_OK(inbox.Finish(waiting.name, {}, wants_answer));
      }
      record.Mark(2 * names_.size() + 1);
      names_.push_back(*name);
      const auto answer = inbox.TakeAnswer(*name);
      ASSERT_TRUE(answer.ok());
      ASSERT_EQ(answer->has_value(), wants_answer);
    }
    ops_ = record.Finish();
    num_first_ = record.first();
  }

  // Returns what is wrong with what some cut leaves. Empty = nothing. The cuts come after the store
  // is there.
  std::string FindFault(const Ops& ops) {
    constexpr uint64_t kSeeds = 8;
    Disk disk;
    std::set<std::string> waiting, known;
    for (size_t i = 0; i < ops.size(); ++i) {
      const DiskOp& op = ops[i];
      disk.Apply(op);
      const fs::path to_name = op.to_name;
      if (to_name.extension() == ".answer") known.insert(to_name.stem());
      if (op.kind == Kind::kMark) (op.at % 2 == 0 ? waiting : known).insert(names_[op.at / 2]);
      if (op.kind == Kind::kUnlink) waiting.erase(fs::path(op.name).stem());
      if (i < num_first_) continue;
      for (uint64_t k = 0; k < kSeeds * kNumPowerCuts; ++k) {
        const fs::path image = folder_.path() / "image";
        disk.Make(static_cast<PowerCut>(k % kNumPowerCuts), i * kSeeds + k, image);
        ++num_cuts_;
        const std::string fault = Judge(Inbox(image / "store"), waiting, known);
        fs::remove_all(image);
        if (!fault.empty()) return fault + ", after " + ToString(op);
      }
    }
    return known.size() == names_.size() ? "" : "not every request was applied";
  }

  void ExpectFound(const std::string& mistake, const Ops& ops, const std::string& fault) {
    num_cuts_ = 0;
    const std::string found = FindFault(ops);
    EXPECT_THAT(found, ::testing::HasSubstr(fault));
    std::cout << "planted: " << mistake << ": found by cut " << num_cuts_ << ": " << found << "\n";
  }

  // The record without what follows the removal of a request, up to its answer.
  Ops WithoutSyncAfterRemoval() const {
    Ops ops;
    bool is_after = false;
    for (const DiskOp& op : ops_) {
      const bool is_removal =
          op.kind == Kind::kUnlink && fs::path(op.name).extension() == ".started";
      is_after = is_removal || (is_after && op.kind != Kind::kRename && op.kind != Kind::kMark);
      if (!is_after || op.kind != Kind::kSync) ops.push_back(op);
    }
    return ops;
  }
  // The record in which an answer is shown while its request is still there.
  Ops WithEarlyAnswer() const {
    Ops ops = ops_;
    const auto removed = std::find_if(ops.begin(), ops.end(), [](const DiskOp& op) {
      return op.kind == Kind::kUnlink && fs::path(op.name).extension() == ".started";
    });
    const auto shown = std::find_if(removed, ops.end(), [](const DiskOp& op) {
      return fs::path(op.to_name).extension() == ".answer";
    });
    if (shown != ops.end()) std::rotate(removed, shown, shown + 1);
    return ops;
  }

  TempFolder folder_;
  std::vector<std::string> names_;
  Ops ops_;
  size_t num_first_ = 0;
  uint64_t num_cuts_ = 0;

 private:
  static std::string Judge(const Inbox& inbox, const std::set<std::string>& waiting,
                           const std::set<std::string>& known) {
    for (const Inbox::Waiting& each : inbox.List().value()) {
      const bool is_applied = each.stage == Inbox::Stage::kApplied;
      if (known.contains(each.name) && !is_applied) return each.name + " comes back";
    }
    for (const std::string& name : waiting) {
      if (!inbox.Has(name)) return name + " is lost";
    }
    return "";
  }
};

TEST_F(InboxPowerCutTest, NoRequestIsLostOrComesBack) {
  ASSERT_EQ(FindFault(ops_), "");
  std::cout << num_cuts_ << " power cuts at " << ops_.size() << " operations, 0 violations\n";
}

TEST_F(InboxPowerCutTest, PlantedMistakesAreFound) {
  ExpectFound("the removal of a request is not synced", WithoutSyncAfterRemoval(), "comes back");
  ExpectFound("the answer is shown before the request is removed", WithEarlyAnswer(), "comes back");
  ExpectFound("requests are not synced", WithoutSyncs(Folder("store/inbox"))(ops_), "is lost");
  ExpectFound("the folder of requests is not synced", WithoutSyncs(Folder("store"))(ops_),
              "is lost");
}

}  // namespace
}  // namespace varve::internal::testing
