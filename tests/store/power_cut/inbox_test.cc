// SPDX-License-Identifier: Apache-2.0
//
// Power cuts while requests are handed in, applied and answered. Once an answer was there to see,
// no cut brings its request back: it would be applied to what was saved since.
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
      for (const Inbox::Waiting& waiting : inbox.List()) {
        VARVE_ASSERT_OK(inbox.Start(waiting).status());
        VARVE_ASSERT_OK(inbox.Finish(waiting.name, {}, wants_answer));
      }
      const auto answer = inbox.TakeAnswer(*name);
      ASSERT_TRUE(answer.ok());
      ASSERT_EQ(answer->has_value(), wants_answer);
    }
    ops_ = record.Finish();
  }

  // Returns what is wrong with what some cut leaves. Empty = nothing.
  std::string FindFault(const Ops& ops) {
    constexpr uint64_t kSeeds = 8;
    Disk disk;
    std::set<std::string> answered;
    for (size_t i = 0; i < ops.size(); ++i) {
      disk.Apply(ops[i]);
      const fs::path to_name = ops[i].to_name;
      if (to_name.extension() == ".answer") answered.insert(to_name.stem());
      for (uint64_t k = 0; k < kSeeds * kNumPowerCuts; ++k) {
        const fs::path image = folder_.path() / "image";
        disk.Make(static_cast<PowerCut>(k % kNumPowerCuts), i * kSeeds + k, image);
        ++num_cuts_;
        const std::vector<Inbox::Waiting> left = Inbox(image / "store").List();
        fs::remove_all(image);
        for (const Inbox::Waiting& each : left) {
          if (!answered.contains(each.name) || each.stage == Inbox::Stage::kApplied) continue;
          return each.name + " was answered and comes back, after " + ToString(ops[i]);
        }
      }
    }
    return answered.size() == 2 ? "" : "not every request was answered";
  }

  void ExpectFound(const std::string& mistake, const Ops& ops) {
    num_cuts_ = 0;
    const std::string fault = FindFault(ops);
    EXPECT_THAT(fault, ::testing::HasSubstr("comes back"));
    std::cout << "planted: " << mistake << ": found by cut " << num_cuts_ << ": " << fault << "\n";
  }

  TempFolder folder_;
  Ops ops_;
  uint64_t num_cuts_ = 0;
};

TEST_F(InboxPowerCutTest, NoAnsweredRequestComesBack) {
  ASSERT_EQ(FindFault(ops_), "");
  std::cout << num_cuts_ << " power cuts at " << ops_.size() << " operations, 0 violations\n";
}

TEST_F(InboxPowerCutTest, PlantedMistakesAreFound) {
  ExpectFound("the removal of a request is not synced", WithoutSyncs(Folder("store/inbox"))(ops_));
  Ops early = ops_;
  const auto is_shown = [](const DiskOp& op) {
    return fs::path(op.to_name).extension() == ".answer";
  };
  const auto is_removed = [](const DiskOp& op) {
    return op.kind == Kind::kUnlink && fs::path(op.name).extension() == ".started";
  };
  const auto removed = std::find_if(early.begin(), early.end(), is_removed);
  const auto shown = std::find_if(removed, early.end(), is_shown);
  ASSERT_NE(shown, early.end());
  std::rotate(removed, shown, shown + 1);
  ExpectFound("the answer is shown before the request is removed", early);
}

}  // namespace
}  // namespace varve::internal::testing
