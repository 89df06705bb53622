// SPDX-License-Identifier: Apache-2.0
#include "tests/store/power_cut/driver.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "tests/support/power_cut.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Kind = DiskOp::Kind;

bool FullSize() { return std::getenv("VARVE_FULL_SIZE") != nullptr; }

std::vector<size_t> SyncsOf(const Ops& ops) {
  std::vector<size_t> at;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].kind == Kind::kSync) at.push_back(i);
  }
  return at;
}

bool IsSync(const DiskOp& op, const Chosen& chosen) { return op.kind == Kind::kSync && chosen(op); }
bool IsReturn(const DiskOp& op) { return op.kind == Kind::kMark && op.at % 2 == 1; }

bool Same(const DiskOp& a, const DiskOp& b) {
  return a.kind == b.kind && a.number == b.number && a.folder == b.folder && a.name == b.name &&
         a.at == b.at;
}

// Plants in those operations whose names are `chosen`.
Plant InOperations(const std::vector<std::string>& names,
                   const std::function<bool(const std::string& name)>& chosen, const Plant& plant) {
  return [=](const Ops& ops) {
    Ops planted, operation;
    for (const DiskOp& op : ops) {
      operation.push_back(op);
      if (op.kind != Kind::kMark) continue;
      const bool is_chosen = IsReturn(op) && chosen(names[op.at / 2]);
      if (is_chosen) operation = plant(std::move(operation));
      planted.insert(planted.end(), operation.begin(), operation.end());
      operation.clear();
    }
    planted.insert(planted.end(), operation.begin(), operation.end());
    return planted;
  };
}

}  // namespace

Chosen Path(const std::string& part) {
  return [part](const DiskOp& op) { return op.path.find(part) != std::string::npos; };
}
Chosen Folder(const std::string& path) {
  return [path](const DiskOp& op) { return op.path == path; };
}

Plant WithoutSyncs(Chosen chosen) {
  return [chosen](Ops ops) {
    std::erase_if(ops, [&](const DiskOp& op) { return IsSync(op, chosen); });
    return ops;
  };
}

Plant LateSyncs(const Chosen& chosen) {
  return [chosen](const Ops& ops) {
    Ops planted, late;
    for (const DiskOp& op : ops) {
      if (IsReturn(op)) planted.insert(planted.end(), late.begin(), late.end());
      if (IsReturn(op)) late.clear();
      (IsSync(op, chosen) ? late : planted).push_back(op);
    }
    return planted;
  };
}

Plant Only(const Recorded& recorded, const std::string& name, const Plant& plant) {
  return InOperations(
      recorded.names, [name](const std::string& each) { return each == name; }, plant);
}
Plant Except(const Recorded& recorded, const std::string& name, const Plant& plant) {
  return InOperations(
      recorded.names, [name](const std::string& each) { return each != name; }, plant);
}

// Lets the power fail from operation `first` on, and counts. With `at_syncs` all that is not synced
// is lost after every sync, too.
PowerCutTest::Verdict PowerCutTest::Drive(const Recorded& recorded, const Ops& ops,
                                          const Judge& judge, size_t first, uint64_t stride,
                                          bool at_syncs, size_t max_faults) {
  Verdict verdict;
  Disk disk;
  Moment moment;
  bool has_synced = true;  // since the last cut in which all that is not synced was lost
  for (size_t i = 0; i < ops.size(); ++i) {
    disk.Apply(ops[i]);
    const bool is_mark = ops[i].kind == Kind::kMark;
    has_synced |= is_mark || ops[i].kind == Kind::kSync;
    if (is_mark) moment.has_begun = ops[i].at % 2 == 0;
    if (is_mark) moment.num_done = (ops[i].at + 1) / 2;
    if (i + 1 < first) continue;
    const bool is_acknowledged = is_mark && !moment.has_begun;
    const uint64_t turn = (i - recorded.first) / stride;
    const bool is_sync = at_syncs && ops[i].kind == Kind::kSync;
    const bool is_stride = !is_mark && (i - recorded.first) % stride == 0;
    if (!is_acknowledged && !is_sync && !is_stride) continue;
    const uint64_t cuts_before = verdict.cuts;
    for (int k = 0; k < kNumPowerCuts; ++k) {
      const auto cut = static_cast<PowerCut>(k);
      const bool is_turn = is_acknowledged
                               ? cut == PowerCut::kAllLost || k == 1 + static_cast<int>(i % 3)
                           : is_sync ? cut == PowerCut::kAllLost
                                     : static_cast<int>(turn % kNumPowerCuts) == k;
      if (!FullSize() && !is_turn) continue;
      if (cut == PowerCut::kAllLost && !std::exchange(has_synced, false)) continue;
      moment.seed = i * kNumPowerCuts + static_cast<uint64_t>(k);
      const fs::path image = folder_.path() / "image";
      disk.Make(cut, moment.seed, image);
      ++verdict.cuts;
      const std::string fault = judge(image, moment);
      fs::remove_all(image);
      if (fault.empty()) continue;
      verdict.faults.push_back(
          std::string(testing::ToString(cut)) + " after operation " + std::to_string(i) + " (" +
          testing::ToString(ops[i]) + "), " + std::to_string(moment.num_done) + " done" +
          (moment.has_begun ? ", in " + recorded.names[moment.num_done] : "") + ": " + fault);
      if (verdict.faults.size() >= max_faults) return verdict;
    }
    verdict.operations += verdict.cuts > cuts_before ? 1 : 0;
  }
  return verdict;
}

PowerCutTest::Verdict PowerCutTest::DrivePlanted(const Recorded& recorded, const Judge& judge,
                                                 const std::string& mistake, const Plant& plant) {
  const auto begin = recorded.ops.begin() + static_cast<ptrdiff_t>(recorded.first);
  Ops ops(recorded.ops.begin(), begin);
  const Ops planted = plant(Ops(begin, recorded.ops.end()));
  ops.insert(ops.end(), planted.begin(), planted.end());
  EXPECT_TRUE(SyncsOf(ops) != SyncsOf(recorded.ops)) << mistake << " changes nothing";
  // What comes before the mistake is as it was.
  const auto mistake_at = std::ranges::mismatch(ops, recorded.ops, Same).in1;
  const auto first = std::max(recorded.first, static_cast<size_t>(mistake_at - ops.begin()));
  return Drive(recorded, ops, judge, first, FullSize() ? 1 : ops.size(), /*at_syncs=*/true, 1);
}

void PowerCutTest::ExpectNoFaults(const Recorded& recorded, const Judge& judge, uint64_t stride) {
  const Verdict verdict =
      Drive(recorded, recorded.ops, judge, recorded.first, FullSize() ? 1 : stride,
            /*at_syncs=*/false, 5);
  for (const std::string& fault : verdict.faults) ADD_FAILURE() << fault;
  std::cout << verdict.cuts << " power cuts at " << verdict.operations << " operations, "
            << verdict.faults.size() << " violations\n";
  EXPECT_GT(verdict.cuts, recorded.names.size());
}

void PowerCutTest::ExpectFound(const Recorded& recorded, const Judge& judge,
                               const std::string& mistake, const Plant& plant) {
  const Verdict verdict = DrivePlanted(recorded, judge, mistake, plant);
  EXPECT_FALSE(verdict.faults.empty()) << mistake << " is not found in " << verdict.cuts;
  if (verdict.faults.empty()) return;
  std::cout << "planted: " << mistake << ": found by cut " << verdict.cuts << ": "
            << verdict.faults[0].substr(0, 240) << "\n";
}

void PowerCutTest::ExpectHarmless(const Recorded& recorded, const Judge& judge,
                                  const std::string& mistake, const Plant& plant) {
  const Verdict verdict = DrivePlanted(recorded, judge, mistake, plant);
  for (const std::string& fault : verdict.faults) ADD_FAILURE() << mistake << ": " << fault;
  std::cout << "planted: " << mistake << ": harmless in " << verdict.cuts << " cuts\n";
}

}  // namespace varve::internal::testing
