// SPDX-License-Identifier: Apache-2.0
//
// Making and opening a store: where it may be made, and what an open cleans up.
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "store/db/commit_batch.h"
#include "store/db/database.h"
#include "store/db/manifest_note.h"
#include "store/db/rocksdb_options.h"
#include "store/db/table_files.h"
#include "store/format/record.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using OpenTest = StoreTest;

TEST_F(OpenTest, CreateTakesOnlyAFolderOfItsOwn) {
  EXPECT_THAT(Store::Create(path()), FailsWith(StatusCode::kAlreadyExists, path().string()));
  const fs::path foreign = folder_.path() / "foreign";
  fs::create_directory(foreign);
  std::ofstream(foreign / "thesis.tex") << "mine";
  EXPECT_THAT(Store::Create(foreign), FailsWith(StatusCode::kFailedPrecondition, "thesis.tex"));
  EXPECT_TRUE(fs::exists(foreign / "thesis.tex"));
  EXPECT_THAT(Store::Open(foreign), FailsWith(StatusCode::kNotFound, "no varve store"));
  EXPECT_THAT(Store::OpenForReading(folder_.path() / "nowhere"),
              FailsWith(StatusCode::kNotFound, "no varve store"));
}

// RocksDB starts them for each family at each open, also where there is nothing to open.
TEST(OpenThreadsTest, FollowTheFiles) {
  EXPECT_EQ(MakeDbOptions().max_file_opening_threads, 1);
  EXPECT_EQ(MakeDbOptions(200).max_file_opening_threads, 1);
  EXPECT_EQ(MakeDbOptions(1'000).max_file_opening_threads, 7);
  EXPECT_EQ(MakeDbOptions(1'000'000).max_file_opening_threads, 16);
}

TEST_F(OpenTest, CreateThatWasCutShortIsMadeAnew) {
  store_.reset();
  fs::remove(path() / "FORMAT");           // written last
  fs::remove(path() / "RESERVE");          // made by the first open
  fs::remove(path() / kManifestNoteName);  // as well
  fs::remove(path() / "spare" / "FORMAT");
  EXPECT_THAT(Store::Open(path()), FailsWith(StatusCode::kNotFound, "FORMAT"));
  auto again = Store::Create(path());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
}

// Whatever Create makes before FORMAT does not look like a store that was used.
TEST_F(OpenTest, ADatabaseWithoutFormatIsMadeAnew) {
  const fs::path other = folder_.path() / "other";
  fs::create_directory(other);
  VARVE_ASSERT_OK(Database::Create(other).status());
  EXPECT_THAT(Store::Open(other), FailsWith(StatusCode::kNotFound, "FORMAT"));
  VARVE_EXPECT_OK(Store::Create(other).status());
}

// It is damage, not a folder in which there is no store, and nobody makes a store there.
TEST_F(OpenTest, AStoreThatHasLostItsFormatFileIsDamaged) {
  const TestTensor t = RandomTensor("t", DType::kU8, {1 << 20}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  store_.reset();
  const fs::path backup = folder_.path() / "backup";
  VARVE_ASSERT_OK(BackUp(path(), backup).status());
  for (const fs::path& store : {path(), backup}) {
    const fs::path kept = folder_.path() / "kept";
    fs::rename(store / "FORMAT", kept);
    const std::string says = (store / "FORMAT").string() + " is missing";
    EXPECT_THAT(Store::Open(store), FailsWith(StatusCode::kCorruption, says));
    EXPECT_THAT(Store::OpenForReading(store), FailsWith(StatusCode::kCorruption, says));
    EXPECT_THAT(Store::OpenOrCreate(store), FailsWith(StatusCode::kCorruption, says));
    EXPECT_THAT(Store::Create(store), FailsWith(StatusCode::kCorruption, says));
    EXPECT_THAT(BackUp(store, folder_.path() / "other"), FailsWith(StatusCode::kCorruption, says));
    // Putting it back is all there is to do, and a backup has the same.
    fs::copy(store == backup ? path() / "FORMAT" : backup / "FORMAT", store / "FORMAT");
    VARVE_EXPECT_OK(Store::OpenForReading(store).status());
    fs::remove(kept);
  }
  Reopen();
  ExpectHolds(1, {t});
}

TEST_F(OpenTest, OptionsOpenOrCreate) {
  store_.reset();
  EXPECT_TRUE(Store::OpenOrCreate(path()).ok());
  EXPECT_TRUE(Store::OpenOrCreate(folder_.path() / "new").ok());
}

TEST_F(OpenTest, LeftoversGoEvenWhenTheyAreLinksToCommittedFiles) {
  const TestTensor t = RandomTensor("t", DType::kU8, {1 << 20}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  store_.reset();
  int links = 0;
  for (const auto& entry : fs::directory_iterator(path() / "db")) {
    if (entry.path().extension() != ".sst") continue;
    fs::create_hard_link(entry.path(),
                         path() / "incoming" / ("birth-4097-" + std::to_string(links++) + ".sst"));
  }
  ASSERT_GT(links, 0);
  Reopen();
  EXPECT_TRUE(fs::is_empty(path() / "incoming"));
  VARVE_ASSERT_OK(Save(2, {RandomTensor("u", DType::kU8, {1 << 20}, 2)}).status());
  ExpectHolds(1, {t});
}

// Puts a chunk file into the database that no save answers for, as a torn protocol might.
TEST_F(OpenTest, OrphanedChunksAreSweptBySave) {
  const TestTensor t = RandomTensor("t", DType::kU8, {1 << 20}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  store_.reset();
  {
    auto database = Database::OpenForWriting(path()).value();
    CommitBatch batch;
    batch.Put(Family::kChunks, keys::Chunk({999999, 0}), std::string(1000, 'x'));
    VARVE_ASSERT_OK(batch.Commit(database.get(), path() / "incoming", {}));
    rocksdb::PinnableSlice frame;
    VARVE_ASSERT_OK(database->GetFrame({999999, 0}, &frame));
  }
  Reopen();
  store_.reset();
  {
    auto database = Database::OpenForReading(path()).value();
    rocksdb::PinnableSlice frame;
    EXPECT_THAT(database->GetFrame({999999, 0}, &frame),
                FailsWith(StatusCode::kNotFound, "999999"));
  }
  Reopen();
  ExpectHolds(1, {t});
}

TEST_F(OpenTest, SavesAreNeverUsedTwice) {
  const TestTensor t = RandomTensor("t", DType::kU8, {100}, 1);
  const auto save_id_of = [&](uint64_t step) {
    auto database = Database::OpenForReading(path()).value();
    const auto record = database->Get(Family::kSteps, keys::Step({1, step})).value();
    return DecodeStepRecord(*record)->save_id;
  };
  VARVE_ASSERT_OK(Save(1, {t}).status());
  store_->Begin(7).value()->Abandon();
  VARVE_ASSERT_OK(Save(2, {t}).status());
  const uint64_t first = save_id_of(1), third = save_id_of(2);
  EXPECT_GE(third, first + 2);  // the abandoned save had the number between
  VARVE_ASSERT_OK(DropSteps({1, 2}));
  Reopen();
  VARVE_ASSERT_OK(Save(1, {t}).status());
  EXPECT_GT(save_id_of(1), third);
}

TEST_F(OpenTest, UnknownFamilyIsLeftAlone) {
  store_.reset();
  {
    auto database = Database::OpenForWriting(path()).value();
    rocksdb::ColumnFamilyHandle* handle = nullptr;
    auto* db = database->rocksdb();
    ASSERT_TRUE(db->CreateColumnFamily({}, "from_the_future", &handle).ok());
    ASSERT_TRUE(db->Put({}, handle, "key", "value").ok());
    ASSERT_TRUE(db->Flush({}, handle).ok());
    ASSERT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
  }
  Reopen();
  const TestTensor t = RandomTensor("t", DType::kU8, {100}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  Reopen();
  ExpectHolds(1, {t});
  EXPECT_TRUE(Store::OpenForReading(path()).ok());
}

TEST_F(OpenTest, StoreMovesWithItsFolder) {
  const TestTensor t = RandomTensor("t", DType::kU8, {1 << 20}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  store_.reset();
  fs::rename(path(), folder_.path() / "moved");
  auto moved = Store::Open(folder_.path() / "moved").value();
  ExpectHolds(*moved, 1, {t});
  moved.reset();
  fs::rename(folder_.path() / "moved", path());
}

// Varve makes no folder in `incoming`, so what lies in one is somebody else's. Earlier versions
// made a backup there without a word.
TEST_F(OpenTest, AFolderInIncomingIsNamedAndStays) {
  const TestTensor t = RandomTensor("t", DType::kU8, {100}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  store_.reset();
  const fs::path others = folder_.path() / "others", inside = path() / "incoming" / "a";
  fs::create_directory(others);
  std::ofstream(others / "thesis.tex") << "mine";
  fs::create_directory_symlink(others, path() / "incoming" / "link");
  fs::create_directory(inside);
  std::ofstream(inside / "file") << "x";
  EXPECT_THAT(Store::Open(path()),
              FailsWith(StatusCode::kFailedPrecondition,
                        inside.string() + " is a folder, expected none. Move it away"));
  EXPECT_TRUE(fs::exists(inside / "file"));
  fs::rename(inside, folder_.path() / "a");
  Reopen();
  EXPECT_TRUE(fs::is_empty(path() / "incoming"));
  EXPECT_TRUE(fs::exists(others / "thesis.tex"));
  ExpectHolds(1, {t});
}

// What keeps a writer out is named, and the error says what to do.
TEST_F(OpenTest, WhatLiesInTheWayOfAWriterIsNamed) {
  VARVE_ASSERT_OK(Save(1, {RandomTensor("t", DType::kU8, {100}, 1)}).status());
  store_.reset();
  fs::remove(path() / "incoming");
  std::ofstream(path() / "incoming") << "x";
  EXPECT_THAT(Store::Open(path()),
              FailsWith(StatusCode::kIOError,
                        (path() / "incoming").string() + " is no folder. Move it away"));
  fs::remove(path() / "incoming");

  fs::remove(path() / "RESERVE");
  fs::create_directories(path() / "RESERVE" / "z");
  EXPECT_THAT(Store::Open(path()),
              FailsWith(StatusCode::kIOError, (path() / "RESERVE").string() +
                                                  " is a folder, expected a file. Move it away"));
  fs::remove_all(path() / "RESERVE");

  for (const char* const name : {"999999.log", "LOCK"}) {
    fs::remove(path() / "db" / name);
    fs::create_symlink("nowhere", path() / "db" / name);
    EXPECT_THAT(Store::Open(path()),
                FailsWith(StatusCode::kCorruption, std::string(name) + " is a link, expected none. "
                                                                       "Remove it"));
    fs::remove(path() / "db" / name);
  }

  fs::rename(path() / "db", folder_.path() / "elsewhere");
  fs::create_directory_symlink(folder_.path() / "elsewhere", path() / "db");
  EXPECT_THAT(Store::Open(path()),
              FailsWith(StatusCode::kCorruption,
                        "db is a link, expected none. Move the folder that it leads to back"));
  VARVE_EXPECT_OK(Store::OpenForReading(path()).status());
  fs::remove(path() / "db");
  fs::rename(folder_.path() / "elsewhere", path() / "db");
}

TEST_F(OpenTest, AWriterMakesNoFileOfOptions) {
  VARVE_ASSERT_OK(Save(1, {RandomTensor("t", DType::kU8, {100}, 1)}).status());
  store_.reset();
  VARVE_ASSERT_OK(Store::Open(path()).status());
  for (const fs::directory_entry& entry : fs::directory_iterator(path() / "db")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("OPTIONS")) << entry.path();
  }
}

// RocksDB asks for the length of the newest file of options, which nobody needs.
TEST_F(OpenTest, ALinkToNowhereAsOptionsIsNoDamage) {
  const TestTensor t = RandomTensor("t", DType::kU8, {100}, 1);
  VARVE_ASSERT_OK(Save(1, {t}).status());
  store_.reset();
  fs::create_symlink("nowhere", path() / "db" / "OPTIONS-999999");
  const auto store = Store::OpenForReading(path());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto check = (*store)->Check({.read_data = true});
  ASSERT_TRUE(check.ok()) << check.status().ToString();
  EXPECT_THAT(check->errors, ::testing::IsEmpty());
  VARVE_EXPECT_OK(BackUp(path(), folder_.path() / "copy").status());
}

// A user without rights, if the test runs as root.
class Nobody {
 public:
  Nobody() {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) std::abort();
  }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;
  ~Nobody() {
    if (::getuid() == 0 && ::seteuid(0) != 0) std::abort();
  }
};

TEST_F(OpenTest, WhatMayNotBeReadIsNotLost) {
  VARVE_ASSERT_OK(Save(1, {RandomTensor("t", DType::kU8, {100}, 1)}).status());
  store_.reset();
  fs::permissions(folder_.path(), fs::perms(0755));
  std::string table;
  for (const auto& entry : fs::directory_iterator(path() / "db")) {
    if (entry.path().extension() == ".sst") table = entry.path();
  }
  std::string manifest;
  std::ifstream(path() / "db" / "CURRENT") >> manifest;
  for (const fs::path& file : {path(), path() / "db", path() / "db" / "CURRENT",
                               path() / "db" / manifest, fs::path(table)}) {
    const fs::perms before = fs::status(file).permissions();
    fs::permissions(file, fs::perms::none);
    {
      const Nobody nobody;
      EXPECT_THAT(Store::OpenForReading(path()),
                  FailsWith(StatusCode::kIOError, "Permission denied"))
          << file;
      EXPECT_THAT(OpenError(rocksdb::Status::Corruption("x"), path()),
                  ::testing::Not(FailsWith(StatusCode::kCorruption, "is missing")))
          << file;
      if (file == table) {
        EXPECT_THAT(FindLostTables(path()), FailsWith(StatusCode::kIOError, "Permission denied"));
      }
    }
    fs::permissions(file, before);
  }
}

}  // namespace
}  // namespace varve::internal::testing
