// SPDX-License-Identifier: Apache-2.0
//
// Power cuts during a repair of a store that has lost a table.
#include "varve/repair.h"

#include "tests/store/power_cut/driver.h"
#include "tests/store/power_cut/judge.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Kind = DiskOp::Kind;

std::map<fs::path, uint64_t> TablesOf(const fs::path& store) {
  std::map<fs::path, uint64_t> sizes;
  for (const auto& entry : fs::directory_iterator(store / "db")) {
    if (entry.path().extension() == ".sst") sizes[entry.path()] = entry.file_size();
  }
  return sizes;
}

// Makes a store that lacks the largest table of its newest step, on which no other step depends.
void MakeDamagedStore(const fs::path& path) {
  std::map<fs::path, uint64_t> before;
  {
    const auto store = Store::Create(path, {.digest_seed = 1}).value();
    for (const uint64_t step : {1, 2, 3}) {
      before = TablesOf(path);
      VARVE_ASSERT_OK(SaveContentOf(store.get(), {"main", step}, step));
    }
  }
  fs::path last;
  uint64_t most = 0;
  for (const auto& [file, size] : TablesOf(path)) {
    if (before.contains(file) || size <= most) continue;
    last = file;
    most = size;
  }
  ASSERT_FALSE(last.empty());
  fs::remove(last);
  fs::remove(path / "RESERVE");
}

// What the repair does from the exchange of the two folders on, without some syncs.
Plant WithoutSyncsAfterExchange(const std::function<bool(const DiskOp& op, size_t k)>& chosen) {
  return [chosen](const Ops& ops) {
    Ops planted;
    bool is_after = false;
    size_t k = 0;  // counts the syncs of folders after the exchange
    for (const DiskOp& op : ops) {
      is_after |= op.kind == Kind::kExchange;
      if (is_after && op.kind == Kind::kSync && chosen(op, k++)) continue;
      planted.push_back(op);
    }
    return planted;
  };
}

class RepairPowerCutTest : public PowerCutTest {
 protected:
  void SetUp() override {
    const fs::path root = folder_.path() / "disk", path = root / "store";
    fs::create_directory(root);
    ASSERT_NO_FATAL_FAILURE(MakeDamagedStore(path));
    {
      Recorder recorder(root);
      recorder.Run(
          "repair", [&] { return RepairStore(path).status(); },
          [&] { recorder.now = ReadState(*Store::OpenForReading(path).value()).value(); });
      recorded_ = recorder.Finish(folder_.path() / "image");
    }
    ASSERT_EQ(recorded_.states.size(), 1u);
    EXPECT_GE(recorded_.states[0].steps.size(), 1u);
    EXPECT_LT(recorded_.states[0].steps.size(), 3u);
  }

  std::string JudgeRepair(const fs::path& folder, const Moment& moment) const {
    if (moment.num_done == 0 && !moment.has_begun) return "";
    const fs::path path = folder / "store";
    const auto report = RepairStore(path);
    if (!report.ok()) return "repairing again: " + report.status().ToString();
    if (!moment.has_begun && !report->damage.empty()) return "the store is damaged again";
    const bool is_kept = fs::exists(path.string() + "~damaged/FORMAT");
    if (!is_kept) return "the damaged store is gone";
    if (fs::exists(path.string() + "~repair")) return "~repair is left";
    return JudgeStore(path, recorded_.states, moment.seed);
  }

  Judge judge() {
    return [this](const fs::path& folder, const Moment& moment) {
      return JudgeRepair(folder, moment);
    };
  }
};

TEST_F(RepairPowerCutTest, NothingIsLost) { ExpectNoFaults(recorded_, judge(), 11); }

TEST_F(RepairPowerCutTest, PlantedMistakesAreFound) {
  ExpectFound(recorded_, judge(), "the new store is exchanged before its files are synced",
              WithoutSyncs(Path("store~repair/store/")));
  ExpectFound(recorded_, judge(), "the exchange of the folders is not synced",
              WithoutSyncsAfterExchange([](const DiskOp&, size_t) { return true; }));
}

// The exchange changes two folders, and the rename that follows changes the same two. To sync any
// of them syncs the exchange.
TEST_F(RepairPowerCutTest, EachSyncOfTheExchangeIsEnough) {
  const std::vector<std::string> names = {"the folder of the store", "the folder of the repair",
                                          "the folder of the store after its last rename"};
  for (size_t kept = 0; kept < names.size(); ++kept) {
    ExpectHarmless(recorded_, judge(), "the exchange is synced only by " + names[kept],
                   WithoutSyncsAfterExchange([&](const DiskOp&, size_t k) { return k != kept; }));
  }
}

}  // namespace
}  // namespace varve::internal::testing
