// SPDX-License-Identifier: Apache-2.0
//
// What a repair must not take for damage of tables: bytes behind a table, files that this user may
// not read, a wrong key, and the FORMAT of another store.
#include <optional>

#include "store/format/format_file.h"
#include "tests/store/repair_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MisreadTest : public RepairTest {
 protected:
  static void Append(const fs::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::app) << bytes;
  }

  // The store is sealed, and has steps 9 and 10.
  void MakeSealed() {
    Reset({.store = {.key = key_}});
    SaveStep("main", 9);
    SaveStep("main", 10);
    store_.reset();
  }

  // The repaired store has these steps, and a full check with its key finds nothing.
  void ExpectSealed(const fs::path& store, const std::vector<uint64_t>& steps) const {
    const auto reader = Store::OpenForReading(store, {.key = key_}).value();
    const auto check = reader->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, IsEmpty());
    EXPECT_TRUE(check->is_sealed);
    std::vector<uint64_t> found;
    const auto infos = reader->ListCheckpoints("main");
    ASSERT_TRUE(infos.ok()) << infos.status().ToString();
    for (const CheckpointInfo& info : *infos) found.push_back(info.id.step);
    EXPECT_EQ(found, steps);
  }

  const std::string key_ = std::string(32, 'k');
};

TEST_F(MisreadTest, BytesBehindTablesLoseNothing) {
  const fs::path store = NewCopy();
  size_t num_tables = 0;
  for (const std::string& file : DbFiles()) {
    if (!file.ends_with(".sst")) continue;
    Append(store / "db" / file, num_tables++ % 2 == 0 ? "x" : std::string(10000, 'y'));
  }
  const auto before = Contents(store);
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->damage.size(), num_tables);
  EXPECT_THAT(report->damage[0], HasSubstr("those behind are left out"));
  EXPECT_EQ(report->kept.size(), whole_.size());
  EXPECT_THAT(report->lost, IsEmpty());
  EXPECT_THAT(report->warnings, IsEmpty());
  for (const auto& step : report->kept) EXPECT_THAT(step.doubts, IsEmpty());
  EXPECT_TRUE(Contents(report->damaged_store) == before);
  ExpectRepaired(store, *report);
}

// The manifest is lost, too, and another table has a byte too many and a damaged block.
TEST_F(MisreadTest, ALongTableWithADamagedBlockIsDamaged) {
  const fs::path store = NewCopy();
  const std::string damaged = NewestChunks();
  ASSERT_NE(damaged, LargestTable());
  Append(store / "db" / LargestTable(), "x");
  Append(store / "db" / damaged, "x");
  FlipBit(store / "db" / damaged, 1000);
  fs::remove(store / "db" / ManifestOf(store));
  const auto report = RepairStore(store);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(NamesTable(*report, damaged + " of family chunks has a damaged block"));
  ASSERT_EQ(report->lost.size(), 1u);
  EXPECT_EQ(report->lost[0].id, (CheckpointId{"main", 4}));
  EXPECT_EQ(report->kept.size(), whole_.size() - 1);
  ExpectRepaired(store, *report);
}

TEST_F(MisreadTest, ATableOfASealedStoreHasItsTagWithoutTheBytesBehindIt) {
  MakeSealed();
  const fs::path store = NewCopy();
  for (const std::string& file : DbFiles()) {
    if (file.ends_with(".sst")) Append(store / "db" / file, "x");
  }
  const auto report = RepairStore(store, {.key = key_});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->lost, IsEmpty());
  EXPECT_THAT(report->warnings, IsEmpty());
  ExpectSealed(store, {9, 10});
}

TEST_F(MisreadTest, WhatThisUserMayNotReadIsNoDamage) {
  const std::string manifest = ManifestOf(path());
  fs::permissions(folder_.path(), fs::perms::all);
  for (const std::string& file :
       {"db/" + NewestChunks(), "db/" + DbFiles().front(), std::string("db/CURRENT"),
        "db/" + manifest, "spare/" + manifest, std::string("SYNCED"), std::string("FORMAT"),
        std::string("db"), std::string("spare"), std::string(".")}) {
    for (const bool is_damaged : {false, true}) {
      SCOPED_TRACE(file + (is_damaged ? " of a damaged store" : ""));
      const fs::path store = NewCopy();
      if (is_damaged) Inflict(Damage::kMiddle, store / "db" / LargestTable());
      const auto before = Contents(store.parent_path());
      GiveToNobody(store.parent_path());
      const fs::path denied = fs::canonical(store / file);
      const fs::perms perms = fs::status(denied).permissions();
      fs::permissions(denied, fs::perms::none);
      {
        const AsNobody as_nobody;
        for (const bool dry_run : {true, false}) {
          const auto report = RepairStore(store, {.dry_run = dry_run, .from = {}, .progress = {}});
          EXPECT_THAT(report, FailsWith(StatusCode::kIOError, denied.string()));
          EXPECT_THAT(report, FailsWith(StatusCode::kIOError, "Permission denied"));
        }
      }
      fs::permissions(denied, perms);
      EXPECT_TRUE(Contents(store.parent_path()) == before);
    }
  }
}

TEST_F(MisreadTest, ABackupThatThisUserMayNotReadLacksNothing) {
  fs::permissions(folder_.path(), fs::perms::all);
  const fs::path store = NewCopy(), backup = store.parent_path() / "backup";
  fs::copy(backup_, backup, fs::copy_options::recursive);
  fs::remove(store / "db" / NewestChunks());
  GiveToNobody(store.parent_path());
  const fs::path denied = backup / "db" / NewestChunks();
  fs::permissions(denied, fs::perms::none);
  {
    const AsNobody as_nobody;
    EXPECT_THAT(RepairStore(store, {.dry_run = false, .from = backup, .progress = {}}),
                FailsWith(StatusCode::kIOError, denied.string()));
  }
  fs::permissions(denied, fs::perms::owner_read);
  {
    const AsNobody as_nobody;
    const auto report = RepairStore(store, {.dry_run = false, .from = backup, .progress = {}});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->kept.size(), whole_.size());
  }
}

// With a seal the key is known to be another one. Without one, nothing but the tables tells.
TEST_F(MisreadTest, AnotherKeyIsRefused) {
  MakeSealed();
  const fs::path store = NewCopy();
  const std::string manifest = ManifestOf(store);
  for (const std::string& lost : {std::string(), std::string("seal"), "db/" + manifest}) {
    SCOPED_TRACE(lost);
    if (!lost.empty()) fs::remove_all(store / lost);
    const auto before = Contents(store.parent_path());
    for (const bool dry_run : {true, false}) {
      EXPECT_THAT(RepairStore(store, {.dry_run = dry_run, .key = std::string(32, 'o')}),
                  FailsWith(StatusCode::kFailedPrecondition, "key"));
      EXPECT_TRUE(Contents(store.parent_path()) == before);
    }
  }
  const auto report = RepairStore(store, {.key = key_});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->lost, IsEmpty());
  ExpectSealed(store, {9, 10});
}

class ForeignFormatTest : public MisreadTest {
 protected:
  // The folder of another store, in which only FORMAT is of interest.
  fs::path MakeOther(std::optional<uint64_t> seed = {}) {
    const fs::path other = folder_.path() / "other";
    CreateOptions options;
    if (seed.has_value()) options.digest_seed = *seed;
    EXPECT_TRUE(Store::Create(other, options).ok());
    return other;
  }

  static void CopyFormat(const fs::path& from, const fs::path& to) {
    fs::copy_file(from / "FORMAT", to / "FORMAT", fs::copy_options::overwrite_existing);
  }
};

TEST_F(ForeignFormatTest, TheOneThatFitsTheStepsIsTaken) {
  const fs::path other = MakeOther();
  for (const bool has_lost_tables : {false, true}) {
    SCOPED_TRACE(has_lost_tables);
    const fs::path store = NewCopy();
    CopyFormat(other, store);
    if (has_lost_tables) {
      fs::remove(store / "db" / NewestChunks());
      fs::remove(store / "db" / ManifestOf(store));
    }
    const auto before = Contents(store);
    const auto dry = RepairStore(store, {.dry_run = true, .from = {}, .progress = {}});
    ASSERT_TRUE(dry.ok()) << dry.status().ToString();
    EXPECT_TRUE(Contents(store) == before);
    const auto report = RepairStore(store, {.dry_run = false, .from = backup_, .progress = {}});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->warnings, dry->warnings);
    ASSERT_EQ(report->warnings.size(), 1u);
    EXPECT_THAT(report->warnings[0],
                HasSubstr((store / "FORMAT").string() + " is that of another store: 0 steps"));
    EXPECT_EQ(report->kept.size(), whole_.size());
    EXPECT_THAT(report->lost, IsEmpty());
    ExpectRepaired(store, *report);
  }
}

TEST_F(ForeignFormatTest, AForeignCopyIsReplaced) {
  const fs::path other = MakeOther();
  for (const bool has_lost_tables : {false, true}) {
    SCOPED_TRACE(has_lost_tables);
    const fs::path store = NewCopy();
    CopyFormat(other, store / "spare");
    EXPECT_THAT(Store::Open(store), FailsWith(StatusCode::kCorruption, "is of another store than"));
    if (has_lost_tables) fs::remove(store / "db" / NewestChunks());
    const auto report = RepairStore(store);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->warnings,
                ElementsAre(HasSubstr("spare/FORMAT is that of another store: 6 steps")));
    EXPECT_EQ(report->kept.size(), whole_.size() - (has_lost_tables ? 1 : 0));
    ExpectRepaired(store, *report);
  }
}

// The digests do not tell two stores with one seed apart.
TEST_F(ForeignFormatTest, ARepairThatCannotTellRefuses) {
  const fs::path store = NewCopy();
  CopyFormat(MakeOther(ReadFormatFile(store, false).value().digest_seed), store);
  const auto before = Contents(store.parent_path());
  EXPECT_THAT(RepairStore(store), FailsWith(StatusCode::kFailedPrecondition, "no step says which"));
  EXPECT_TRUE(Contents(store.parent_path()) == before);
}

// The foreign FORMAT says that the store is not sealed.
TEST_F(ForeignFormatTest, ASealedStoreStaysSealed) {
  MakeSealed();
  const fs::path store = NewCopy();
  CopyFormat(MakeOther(), store);
  EXPECT_THAT(RepairStore(store), FailsWith(StatusCode::kFailedPrecondition, "no key was given"));
  const auto report = RepairStore(store, {.key = key_});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->warnings.size(), 1u);
  EXPECT_THAT(report->lost, IsEmpty());
  ExpectSealed(store, {9, 10});
}

}  // namespace
}  // namespace varve::internal::testing
