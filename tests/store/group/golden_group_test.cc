// SPDX-License-Identifier: Apache-2.0
//
// Groups as files (tests/golden): what the code of one day wrote must be read and written on by all
// later code. A change of the format adds one here. VARVE_WRITE_GOLDEN=1 makes the newest anew.
//   group  version 1 as it was first: one file a catalogue,
//          parts of all ranks in snapshots (kind 16)
//          and in commits (kind 5)
//   group_crews  version 2: parts of committed steps are in the indices of their catalogues
//   group_slots  version 3: parts of open ones are in slots, snapshots are files
// Each has three ranks, a snapshot, saves before and after it, a tag, metrics, a fork and a drop.
#include <cstdlib>
#include <thread>

#include "store/format/group_file.h"
#include "store/group/group_log.h"
#include "store/group/posix_record_log.h"
#include "tests/store/store_fixture.h"
#include "varve/group.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const fs::path kGolden = VARVE_GOLDEN_STORES;
constexpr const char* kNewest = "group_slots";
constexpr uint32_t kRanks = 3;
constexpr size_t kFloat = 4;

// Integer arithmetic only: the same values with any library's distributions.
TestTensor GoldenTensor(uint64_t step) {
  TestTensor tensor{"w", DType::kF32, {12, 20}, {}, {}};
  for (uint64_t i = 0; i < 240; ++i) {
    const auto value = static_cast<float>((i * 7919 + step) % 4801);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    tensor.bytes.insert(tensor.bytes.end(), bytes, bytes + kFloat);
  }
  return tensor;
}

TestTensor OwnTensor(uint32_t rank, uint64_t step) {
  const auto fill = static_cast<std::byte>(uint64_t{16} * rank + step);
  return {
      "of rank " + std::to_string(rank), DType::kU8, {90}, std::vector<std::byte>(90, fill), {}};
}

Status SaveRank(Store* store, uint32_t rank, uint64_t step) {
  const TestTensor tensor = GoldenTensor(step);
  ShardLayout rows = ShardLayout::Whole(tensor.shape);
  rows.axes[0] = {{int64_t{4} * rank, 4}};
  const std::vector<int64_t> shape = rows.LocalShape();
  VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(step));
  VARVE_RETURN_IF_ERROR(writer->Put({.name = tensor.name,
                                     .dtype = tensor.dtype,
                                     .shape = shape,
                                     .data = &tensor.bytes[size_t{80} * rank * kFloat],
                                     .layout = &rows}));
  const TestTensor own = OwnTensor(rank, step);
  VARVE_RETURN_IF_ERROR(writer->Put(own.view()));
  VARVE_RETURN_IF_ERROR(writer->PutBytes("item", std::as_bytes(std::span("bytes", 5))));
  VARVE_RETURN_IF_ERROR(writer->SetMetric("loss", 1.0 / static_cast<double>(step)));
  return writer->Commit().status();
}

// The ranks of an epoch save these steps.
void SaveSteps(const fs::path& root, uint64_t epoch, const std::vector<uint64_t>& steps) {
  std::vector<std::jthread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = Group::Join(root, {.rank = rank, .epoch = epoch, .host = "golden"});
      VARVE_ASSERT_OK(store.status());
      for (const uint64_t step : steps) VARVE_ASSERT_OK(SaveRank(store->get(), rank, step));
    });
  }
}

void SaveSteps(const fs::path& root, const std::vector<uint64_t>& steps) {
  const auto epoch = Group::StartEpoch(root, kRanks);
  VARVE_ASSERT_OK(epoch.status());
  SaveSteps(root, *epoch, steps);
}

uint64_t NewestSnapshot(const fs::path& root) {
  GroupLog log(MakePosixRecordLog(LogFolder(root)), ReadGroupFile(root)->digest_seed);
  EXPECT_TRUE(log.Refresh().ok());
  return log.With([](const GroupState& state) { return state.snapshot; });
}

void AppendUntilSnapshot(const fs::path& root, Store* store, uint64_t step) {
  const uint64_t before = NewestSnapshot(root);
  for (int i = 1; i % 16 != 0 || NewestSnapshot(root) == before; ++i) {
    VARVE_ASSERT_OK(store->SetMetrics({"main", step}, {{"round", i}}));
  }
}

void WriteGolden(const fs::path& root) {
  fs::remove_all(root);
  ASSERT_NO_FATAL_FAILURE(SaveSteps(root, {1, 2}));
  {
    const auto store = Store::Open(root).value();
    VARVE_ASSERT_OK(store->SetTag({"main", 1}, "first"));
    AppendUntilSnapshot(root, store.get(), 2);
  }
  ASSERT_NO_FATAL_FAILURE(SaveSteps(root, {3, 4}));
  {
    const auto store = Store::Open(root).value();
    VARVE_ASSERT_OK(store->Fork("main", "side", 3).status());
    VARVE_ASSERT_OK(store->Drop(std::vector<CheckpointId>{{"main", 2}}).status());
  }
  // What has no meaning.
  for (const auto& entry : fs::directory_iterator(LogFolder(root))) {
    if (!entry.is_regular_file() || entry.path().filename() == "newest") continue;
    if (std::stoull(entry.path().filename()) < NewestSnapshot(root)) fs::remove(entry.path());
  }
  for (const auto& entry : fs::directory_iterator(LogFolder(root) / "states")) {
    if (std::stoull(entry.path().stem()) < NewestSnapshot(root)) fs::remove(entry.path());
  }
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.path().stem() == "RESERVE") fs::remove(entry.path());
  }
  for (const auto& member : fs::directory_iterator(MembersFolder(root))) {
    fs::remove_all(member.path() / "incoming");
    for (const auto& entry : fs::directory_iterator(member.path() / "db")) {
      const std::string name = entry.path().filename();
      if (name == "LOCK" || name.rfind("OPTIONS", 0) == 0) fs::remove(entry.path());
    }
  }
}

class GoldenGroupTest : public ::testing::TestWithParam<const char*> {
 protected:
  static bool is_newest() { return GetParam() == std::string_view(kNewest); }
  static uint32_t version() {
    return is_newest() ? kGroupVersion : GetParam() == std::string_view("group") ? 1 : 2;
  }
  fs::path root() const { return folder_.path() / "root"; }
  void SetUp() override {
    if (is_newest() && std::getenv("VARVE_WRITE_GOLDEN") != nullptr) {
      WriteGolden(kGolden / GetParam());
    }
    fs::copy(kGolden / GetParam(), root(), fs::copy_options::recursive);
  }

  static void ExpectHolds(const Store& store, const std::string& run, uint64_t step) {
    const auto reader = store.OpenCheckpoint(run, step);
    VARVE_ASSERT_OK(reader.status());
    EXPECT_EQ((*reader)->info().num_tensors, 2 * kRanks);
    EXPECT_EQ((*reader)->info().logical_bytes, 240 * kFloat + uint64_t{90} * kRanks);
    EXPECT_EQ((*reader)->info().metrics.at("loss"), 1.0 / static_cast<double>(step));
    EXPECT_EQ((*reader)->List()->size(), 1 + kRanks);
    const TestTensor tensor = GoldenTensor(step);
    std::vector<std::byte> out(tensor.bytes.size());
    VARVE_ASSERT_OK((*reader)->Read("w", out));
    EXPECT_TRUE(out == tensor.bytes);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const TestTensor own = OwnTensor(rank, step);
      out.assign(own.bytes.size(), std::byte{});
      VARVE_ASSERT_OK((*reader)->Read(own.name, out));
      EXPECT_TRUE(out == own.bytes);
    }
    EXPECT_THAT(*(*reader)->ListBytes(), ElementsAre("item", "item@1", "item@2"));
    EXPECT_EQ((*reader)->ReadBytes("item@2")->size(), 5u);
  }

  static void ExpectGolden(const Store& store) {
    ASSERT_EQ(store.ListCheckpoints("main")->size(), 3u);
    for (const uint64_t step : {1, 3, 4}) ExpectHolds(store, "main", step);
    ExpectHolds(store, "side", 3);
    EXPECT_EQ(store.FindTag("main", "first").value(), 1u);
    EXPECT_EQ(store.ListRuns()->at(1).forked_from->step, 3u);
    const auto check = store.Check({.read_data = true});
    VARVE_ASSERT_OK(check.status());
    EXPECT_THAT(check->errors, IsEmpty());
  }

  uint32_t VersionOfFile() const { return ReadGroupFile(root())->version; }
  uint32_t VersionOfLog() const {
    GroupLog log(MakePosixRecordLog(LogFolder(root())), ReadGroupFile(root())->digest_seed);
    EXPECT_TRUE(log.Refresh().ok());
    return log.With([](const GroupState& state) { return state.version; });
  }

  TempFolder folder_;
};

TEST_P(GoldenGroupTest, IsReadAndWrittenOn) {
  ExpectGolden(*Store::OpenForReading(root()).value());
  {
    const auto store = Store::Open(root()).value();
    ExpectGolden(*store);
    VARVE_ASSERT_OK(store->SetTag({"side", 3}, "new"));
  }
  // Jobs that run on are not disturbed by commands of newer programs.
  EXPECT_EQ(VersionOfFile(), version());
  EXPECT_EQ(VersionOfLog(), version());
  ASSERT_NO_FATAL_FAILURE(SaveSteps(root(), {5}));
  EXPECT_EQ(VersionOfFile(), kGroupVersion);
  EXPECT_EQ(VersionOfLog(), kGroupVersion);
  {
    const auto store = Store::Open(root()).value();
    ExpectHolds(*store, "main", 5);
    // Snapshots of what the golden group has with what came to it.
    AppendUntilSnapshot(root(), store.get(), 5);
    VARVE_ASSERT_OK(store->Drop(std::vector<CheckpointId>{{"main", 1}, {"main", 3}}).status());
  }
  const auto store = Store::OpenForReading(root()).value();
  for (const uint64_t step : {4, 5}) ExpectHolds(*store, "main", step);
  ExpectHolds(*store, "side", 3);
  EXPECT_EQ(store->FindTag("side", "new").value(), 3u);
  EXPECT_THAT(store->Check({.read_data = true})->errors, IsEmpty());
}

// Current ranks in a job that a program of version 1 has started. Ranks of that program may take
// part.
TEST_P(GoldenGroupTest, AnEpochOfAnOlderProgramIsWrittenOnInItsForm) {
  uint64_t epoch = 0;
  {
    GroupLog log(MakePosixRecordLog(LogFolder(root())), ReadGroupFile(root())->digest_seed);
    VARVE_ASSERT_OK(log.Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
      if (epoch != 0) return std::optional<GroupRecord>();
      epoch = state.epoch + 1;
      return std::optional(GroupRecord{{}, EpochRecord{epoch, 1, kRanks, 1}});
    }));
  }
  ASSERT_NO_FATAL_FAILURE(SaveSteps(root(), epoch, {5, 6}));
  EXPECT_EQ(VersionOfLog(), version());
  const auto store = Store::OpenForReading(root()).value();
  for (const uint64_t step : {1, 3, 4, 5, 6}) ExpectHolds(*store, "main", step);
  EXPECT_THAT(store->Check({.read_data = true})->errors, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, GoldenGroupTest, ::testing::Values("group", "group_crews", kNewest),
                         [](const auto& golden) { return std::string(golden.param); });

}  // namespace
}  // namespace varve::internal::testing
