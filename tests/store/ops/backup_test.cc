// SPDX-License-Identifier: Apache-2.0
#include "varve/backup.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;
using testing::FailsWith;
using testing::NormalTensor;
using testing::RandomTensor;
using testing::TestTensor;

class BackupTest : public testing::StoreTest {
 protected:
  fs::path copy() const { return folder_.path() / "copy"; }
  static std::vector<TestTensor> State(uint64_t step) {
    return {NormalTensor("w", {400000}, step), RandomTensor("frozen", DType::kF32, {700000}, 1)};
  }
  // The newest manifest of a store or a copy.
  static fs::path ManifestOf(const fs::path& store) {
    std::string name;
    std::ifstream(store / "db" / "CURRENT") >> name;
    return store / "db" / name;
  }
  void ExpectCopyHolds(const std::vector<uint64_t>& steps) {
    const auto store = Store::OpenForReading(copy());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto check = (*store)->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
    EXPECT_EQ((*store)->ListCheckpoints("main")->size(), steps.size());
    for (const uint64_t step : steps) ExpectHolds(**store, step, State(step));
  }
};

TEST_F(BackupTest, CopiesALiveStoreAndThenWhatIsNew) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  const auto first = BackUp(path(), copy(), {.read_data = true});
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(first->num_steps, 1);
  EXPECT_GE(first->copied_bytes, first->total_bytes);
  ExpectCopyHolds({1});

  VARVE_ASSERT_OK(Save(2, State(2)).status());
  const auto second = BackUp(path(), copy());
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_EQ(second->num_steps, 2);
  // The frozen tensor's file is there already.
  EXPECT_LT(second->copied_bytes, second->total_bytes - 700000 * 4 + 1000000);
  ExpectCopyHolds({1, 2});

  VARVE_ASSERT_OK(DropSteps({1}));
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  ExpectCopyHolds({2});
  const auto third = BackUp(path(), copy());
  EXPECT_EQ(third->copied_files, 0);
  ExpectCopyHolds({2});
}

TEST_F(BackupTest, ProgressSaysHowMuchThereIsToCopy) {
  for (const uint64_t step : {1, 2}) {
    VARVE_ASSERT_OK(Save(step, State(step)).status());
    std::vector<std::pair<uint64_t, uint64_t>> calls;
    const auto note = [&](uint64_t done, uint64_t total) { calls.emplace_back(done, total); };
    const auto report = BackUp(path(), copy(), {.progress = note});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ASSERT_FALSE(calls.empty());
    EXPECT_TRUE(std::ranges::is_sorted(calls));
    for (const auto& [done, total] : calls) EXPECT_EQ(total, report->copied_bytes);
    EXPECT_EQ(calls.back().first, report->copied_bytes);
  }
  ExpectCopyHolds({1, 2});
}

TEST_F(BackupTest, TheCopyIsAStoreToTrainOn) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  {
    auto store = *Store::Open(copy());
    auto writer = *store->Begin(2);
    const std::vector<TestTensor> state = State(2);
    for (const TestTensor& tensor : state) VARVE_ASSERT_OK(writer->Put(tensor.view()));
    VARVE_ASSERT_OK(writer->Commit().status());
  }
  ExpectCopyHolds({1, 2});
  // Its own step would be lost.
  VARVE_ASSERT_OK(Save(3, State(3)).status());
  EXPECT_THAT(BackUp(path(), copy()),
              FailsWith(StatusCode::kFailedPrecondition, "written to after the last backup"));
  ExpectCopyHolds({1, 2});
}

// A writer leaves SYNCED, spare/ and more in the copy. These say so when CURRENT or the manifest
// cannot.
TEST_F(BackupTest, ACopyWithStepsOfItsOwnStaysWhateverItHasLost) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  const fs::path sound = folder_.path() / "sound", older = folder_.path() / "older";
  fs::copy(copy(), older, fs::copy_options::recursive);
  {
    auto store = *Store::Open(copy());
    auto writer = *store->Begin(2);
    const std::vector<TestTensor> state = State(2);
    for (const TestTensor& tensor : state) VARVE_ASSERT_OK(writer->Put(tensor.view()));
    VARVE_ASSERT_OK(writer->Commit().status());
  }
  fs::copy(copy(), sound, fs::copy_options::recursive);
  const std::vector<std::function<void()>> damages = {
      [&] { fs::remove(copy() / "db" / "CURRENT"); },
      [&] { std::ofstream(copy() / "db" / "CURRENT") << "junk"; },
      [&] { fs::remove(ManifestOf(copy())); },
      [&] {
        const auto overwrite = fs::copy_options::overwrite_existing;
        fs::copy(older / "db" / "CURRENT", copy() / "db" / "CURRENT", overwrite);
        fs::copy(ManifestOf(older), copy() / "db", overwrite);
      }};
  for (const auto& damage : damages) {
    damage();
    EXPECT_THAT(BackUp(path(), copy()),
                FailsWith(StatusCode::kFailedPrecondition, "written to after the last backup"));
    fs::remove_all(copy());
    fs::copy(sound, copy(), fs::copy_options::recursive);
  }
  ExpectCopyHolds({1, 2});
}

// Nobody wrote to it, so it has nothing to lose.
TEST_F(BackupTest, ACopyWithoutStepsOfItsOwnGetsItsManifestAndCurrentAnew) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  const auto current = [&] { return copy() / "db" / "CURRENT"; };
  const auto manifest = [&] { return ManifestOf(copy()); };
  const std::vector<std::pair<std::function<fs::path()>, void (*)(const fs::path&)>> damages = {
      {current, [](const fs::path& file) { fs::remove(file); }},
      {current, [](const fs::path& file) { std::ofstream(file) << "junk"; }},
      {current, [](const fs::path& file) { fs::resize_file(file, 0); }},
      {manifest, [](const fs::path& file) { fs::remove(file); }},
      {manifest, [](const fs::path& file) { fs::resize_file(file, 7); }},
      {manifest, [](const fs::path& file) { std::ofstream(file, std::ios::app) << "more"; }}};
  for (const auto& [file, strike] : damages) {
    const fs::path damaged = file();
    strike(damaged);
    const auto report = BackUp(path(), copy());
    ASSERT_TRUE(report.ok()) << damaged << ": " << report.status().ToString();
    EXPECT_THAT(report->mended_files, ::testing::ElementsAre(damaged.string()));
    EXPECT_EQ(report->copied_files, 0u);
    ExpectCopyHolds({1});
  }
  std::ofstream(current()) << "MANIFEST-999999\n";
  EXPECT_THAT(BackUp(path(), copy()),
              FailsWith(StatusCode::kFailedPrecondition, "CURRENT names MANIFEST-999999"));
}

// What lies in a store is the store's, and its writer clears some of it.
TEST_F(BackupTest, RefusesAFolderInsideOfAStore) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  const fs::path other = folder_.path() / "other";
  VARVE_ASSERT_OK(Store::Create(other).status());
  fs::create_symlink(path() / "incoming", folder_.path() / "link");
  for (const fs::path& inside : {path() / "incoming" / "copy", path() / "spare" / "a" / "copy",
                                 other / "copy", folder_.path() / "link" / "copy"}) {
    const auto is_inside = FailsWith(StatusCode::kFailedPrecondition, "lies inside of the store");
    EXPECT_THAT(BackUp(path(), inside), is_inside);
    EXPECT_THAT(Store::Create(inside), is_inside);
    EXPECT_THAT(Store::OpenOrCreate(inside), is_inside);
    EXPECT_FALSE(fs::exists(inside));
    EXPECT_FALSE(fs::exists(path() / "spare" / "a"));
  }
  VARVE_EXPECT_OK(BackUp(path(), copy()).status());
  ExpectCopyHolds({1});
}

TEST_F(BackupTest, RefusesFoldersOfOthers) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  fs::create_directory(copy());
  std::ofstream(copy() / "thesis.tex") << "x";
  EXPECT_THAT(BackUp(path(), copy()), FailsWith(StatusCode::kFailedPrecondition, "not empty"));
  fs::remove(copy() / "thesis.tex");
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  EXPECT_THAT(BackUp(path(), path()), FailsWith(StatusCode::kInvalidArgument, "into itself"));
  EXPECT_THAT(BackUp(folder_.path() / "none", copy()), FailsWith(StatusCode::kNotFound, "none"));

  const fs::path other = folder_.path() / "other";
  VARVE_ASSERT_OK(Store::Create(other).status());
  EXPECT_THAT(BackUp(other, copy()), FailsWith(StatusCode::kFailedPrecondition, "another store"));
  {
    const auto writer = Store::Open(copy());
    ASSERT_TRUE(writer.ok());
    EXPECT_THAT(BackUp(path(), copy()), FailsWith(StatusCode::kLocked, "copy"));
  }
  std::ofstream(copy() / "BACKUP") << "varve backup 1\nnonsense\n";
  EXPECT_THAT(BackUp(path(), copy()), FailsWith(StatusCode::kCorruption, "BACKUP"));
}

// A crash may leave such debris of a backup that did not finish.
TEST_F(BackupTest, GoesOnAfterACrash) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  std::ofstream(copy() / "db" / "999999.sst") << "cut";
  std::ofstream(copy() / "db" / "000001.sst.tmp") << "cut";
  std::ofstream(copy() / "db" / "MANIFEST-000777") << "cut";
  fs::create_directories(copy() / "staging" / "db");
  ExpectCopyHolds({1});
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  ExpectCopyHolds({1, 2});
  EXPECT_FALSE(fs::exists(copy() / "staging"));
  EXPECT_FALSE(fs::exists(copy() / "db" / "999999.sst"));
  EXPECT_FALSE(fs::exists(copy() / "db" / "MANIFEST-000777"));
}

// A first backup that was cut short leaves no store, and the next one makes it.
TEST_F(BackupTest, GoesOnAfterACrashOfTheFirst) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  for (const bool has_current : {false, true}) {
    fs::remove(copy() / "FORMAT");
    fs::create_directories(copy() / "staging" / "db");
    if (!has_current) fs::remove(copy() / "db" / "CURRENT");
    EXPECT_THAT(Store::OpenForReading(copy()), FailsWith(StatusCode::kNotFound, "copy"));
    VARVE_ASSERT_OK(BackUp(path(), copy()).status());
    ExpectCopyHolds({1});
  }
  // After that, a FORMAT that is missing was lost.
  fs::remove(copy() / "FORMAT");
  EXPECT_THAT(Store::OpenForReading(copy()), FailsWith(StatusCode::kCorruption, "put the file"));
}

// A file of the copy that is damaged is found before it is published, or copied anew.
TEST_F(BackupTest, DamageDoesNotReplaceAGoodCopy) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  for (const auto& entry : fs::directory_iterator(copy() / "db")) {
    if (entry.path().extension() != ".sst") continue;
    fs::resize_file(entry.path(),
                    fs::file_size(entry.path()) - 1);  // size and time differ: copied anew
  }
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  ExpectCopyHolds({1});
}

// A verified copy does not contain a file that was damaged before. An earlier copy stays.
TEST_F(BackupTest, ADamagedChunkIsNotCopied) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  std::set<std::string> before;
  for (const auto& entry : fs::directory_iterator(path() / "db")) before.insert(entry.path());
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  store_.reset();
  std::string damaged;
  for (const auto& entry : fs::directory_iterator(path() / "db")) {
    if (before.contains(entry.path()) || entry.path().extension() != ".sst") continue;
    if (entry.file_size() < (1u << 20)) continue;
    damaged = entry.path().filename();
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(700000);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(700000);
    file.put(byte);
  }
  ASSERT_NE(damaged, "");
  expect_damage_ = true;
  EXPECT_THAT(BackUp(path(), copy()), FailsWith(StatusCode::kCorruption, damaged));
  EXPECT_THAT(BackUp(path(), copy()), FailsWith(StatusCode::kCorruption, damaged));
  ExpectCopyHolds({1});
  EXPECT_THAT(BackUp(path(), folder_.path() / "first"),
              FailsWith(StatusCode::kCorruption, damaged));
}

// All regular files below a folder, with what they hold.
std::map<std::string, std::string> ContentOf(const fs::path& folder) {
  std::map<std::string, std::string> content;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_symlink() || !entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    content[entry.path()] = bytes.str();
  }
  return content;
}

void FlipABit(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(middle);
  file.put(byte);
}

// Every kind of damage, to each file that the store needs.
TEST_F(BackupTest, ADamagedStoreLeavesAnEarlierCopyAsItWas) {
  const auto small = [](uint64_t step) {
    return std::vector<TestTensor>{NormalTensor("w", {40000}, step)};
  };
  VARVE_ASSERT_OK(Save(1, small(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  std::map<std::string, std::string> before = ContentOf(copy());
  before.erase(copy() / "db" / "LOCK");
  const auto expect_as_it_was = [&](const std::string& where) {
    const auto now = ContentOf(copy());
    for (const auto& [name, bytes] : before) {
      const auto found = now.find(name);
      ASSERT_TRUE(found != now.end()) << name << ": " << where;
      ASSERT_TRUE(found->second == bytes) << name << ": " << where;
    }
    const auto store = Store::OpenForReading(copy());
    ASSERT_TRUE(store.ok()) << where << ": " << store.status().ToString();
    const auto check = (*store)->Check({.read_data = true});
    ASSERT_TRUE(check.ok() && check->ok()) << where;
    ExpectHolds(**store, 1, small(1));
  };
  const std::map<std::string, void (*)(const fs::path&)> damages = {
      {"cut", [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); }},
      {"emptied", [](const fs::path& file) { fs::resize_file(file, 0); }},
      {"flipped", FlipABit},
      {"lost", [](const fs::path& file) { fs::remove(file); }}};
  for (const bool with_a_new_step : {false, true}) {
    if (with_a_new_step) VARVE_ASSERT_OK(Save(2, small(2)).status());
    store_.reset();
    size_t num_tables = 0;
    const auto sound = ContentOf(path() / "db");
    for (const auto& [name, bytes] : sound) {
      const fs::path file = name;
      const bool is_table = file.extension() == ".sst";
      if (!is_table && file.filename() != "CURRENT" && !file.filename().string().starts_with("MAN"))
        continue;
      num_tables += is_table;
      for (const auto& [damage, strike] : damages) {
        // What the copy has need not be copied again.
        const fs::path theirs = copy() / "db" / file.filename();
        if (is_table && damage == "lost" && fs::exists(theirs)) continue;
        strike(file);
        const std::string where = damage + " " + name;
        for (const bool read_data : {false, true}) {
          // The second time finds what the first has left.
          const Status status = BackUp(path(), copy(), {.read_data = read_data}).status();
          const std::string says = is_table ? file.filename().string() : "";
          EXPECT_THAT(status, FailsWith(StatusCode::kCorruption, says)) << where;
          expect_as_it_was(where);
        }
        std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
        ASSERT_FALSE(HasFailure()) << where;
      }
    }
    EXPECT_GE(num_tables, 4u);
    Reopen();
  }
  const auto report = BackUp(path(), copy());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(report->mended_files, ::testing::IsEmpty());
  const auto store = Store::OpenForReading(copy());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  for (const uint64_t step : {1, 2}) ExpectHolds(**store, step, small(step));
}

// The store's sound file takes the place of one that is damaged in the copy, and the report says
// so. One that is damaged on both sides is an error.
TEST_F(BackupTest, ADamagedCopyIsMendedFromASoundStoreOnly) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  store_.reset();
  std::vector<fs::path> tables;
  for (const auto& entry : fs::directory_iterator(copy() / "db")) {
    if (entry.path().extension() == ".sst") tables.push_back(entry.path());
  }
  ASSERT_GE(tables.size(), 4u);
  const std::vector<void (*)(const fs::path&)> damages = {
      FlipABit, [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); },
      [](const fs::path& file) { fs::remove(file); }};
  for (const fs::path& table : tables) {
    for (const auto& strike : damages) {
      strike(table);
      const fs::path source = path() / "db" / table.filename();
      const fs::path saved = folder_.path() / "saved";
      fs::copy_file(source, saved, fs::copy_options::overwrite_existing);
      FlipABit(source);  // of the first damage, both have the same bytes now
      fs::last_write_time(source, fs::file_time_type::clock::now() + std::chrono::hours(1));
      for (int i = 0; i < 2; ++i) {
        EXPECT_THAT(BackUp(path(), copy()), FailsWith(StatusCode::kCorruption, source.string()));
      }
      fs::copy_file(saved, source, fs::copy_options::overwrite_existing);
      const auto report = BackUp(path(), copy());
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_THAT(report->mended_files, ::testing::ElementsAre(table.string()));
      ExpectCopyHolds({1});
    }
  }
}

// The copy has all that the store had, so it is whole.
TEST_F(BackupTest, ATableThatTheStoreHasLostStaysInTheCopy) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  store_.reset();
  expect_damage_ = true;
  for (const auto& entry : fs::directory_iterator(path() / "db")) {
    if (entry.path().extension() == ".sst") fs::remove(entry.path());
  }
  VARVE_EXPECT_OK(BackUp(path(), copy()).status());
  ExpectCopyHolds({1});
}

// Bytes that rotted in the copy, without a new time, are found with read_data, and the message says
// how to get them back.
TEST_F(BackupTest, ReadDataFindsWhatRottedInTheCopy) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  for (const auto& entry : fs::directory_iterator(copy() / "db")) {
    if (entry.path().extension() != ".sst") continue;
    const auto time = entry.last_write_time();
    FlipABit(entry.path());
    fs::last_write_time(entry.path(), time);
    EXPECT_THAT(BackUp(path(), copy(), {.read_data = true}),
                FailsWith(StatusCode::kCorruption,
                          "table file " + entry.path().string() + " of the copy is damaged"));
    fs::remove(entry.path());
    const auto report = BackUp(path(), copy(), {.read_data = true});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_THAT(report->mended_files, ::testing::ElementsAre(entry.path().string()));
  }
  ExpectCopyHolds({1});
}

// A store that was put back to an older state and went on gives its files the same names again.
TEST_F(BackupTest, ACopyWithStepsThatTheStoreNeverHadStays) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  store_.reset();
  const fs::path older = folder_.path() / "older";
  fs::copy(path(), older, fs::copy_options::recursive);
  Reopen();
  VARVE_ASSERT_OK(Save(2, State(2)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  store_.reset();
  fs::remove_all(path());
  fs::rename(older, path());
  Reopen();
  VARVE_ASSERT_OK(Save(2, State(22)).status());
  VARVE_ASSERT_OK(Save(3, State(3)).status());
  EXPECT_THAT(BackUp(path(), copy()),
              FailsWith(StatusCode::kFailedPrecondition, "steps that this store never had"));
  ExpectCopyHolds({1, 2});
}

// A copy of a store, file by file, has other times. Its tables are not copied again.
TEST_F(BackupTest, OtherTimesAreNotOtherFiles) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  for (const auto& entry : fs::directory_iterator(path() / "db")) {
    if (entry.path().extension() != ".sst") continue;
    fs::last_write_time(entry.path(), entry.last_write_time() + std::chrono::hours(1));
  }
  const auto report = BackUp(path(), copy());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->copied_files, 0u);
  ExpectCopyHolds({1});
}

// Neither a first write that failed nor a crash in the middle of it prevents the next backup.
// A copy has no SYNCED. RocksDB would take the rest of its manifest for an earlier state.
TEST_F(BackupTest, ACopyWhoseManifestHasLostItsEndIsDamaged) {
  for (const uint64_t step : {1, 2, 3}) VARVE_ASSERT_OK(Save(step, State(step)).status());
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  fs::path manifest;
  for (const auto& entry : fs::directory_iterator(copy() / "db")) {
    if (entry.path().filename().string().starts_with("MANIFEST-")) manifest = entry.path();
  }
  ASSERT_FALSE(manifest.empty());
  const uint64_t size = fs::file_size(manifest);
  for (const uint64_t left : {size - 1, size / 2}) {
    fs::resize_file(manifest, left);
    EXPECT_THAT(Store::OpenForReading(copy()),
                FailsWith(StatusCode::kCorruption, "its end is lost"));
    EXPECT_THAT(Store::Open(copy()), FailsWith(StatusCode::kCorruption, "BACKUP"));
  }
}

TEST_F(BackupTest, GoesOnAfterAMarkerThatWasNotWritten) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  fs::create_directory(copy());
  std::ofstream(copy() / "BACKUP.tmp") << "varve ba";
  VARVE_ASSERT_OK(BackUp(path(), copy()).status());
  ExpectCopyHolds({1});
  EXPECT_FALSE(fs::exists(copy() / "BACKUP.tmp"));
}

// The store has more files than this process may have open at once.
TEST_F(BackupTest, CopiesMoreFilesThanItMayOpen) {
  VARVE_ASSERT_OK(Save(1, State(1)).status());
  const fs::path table = [&] {
    for (const auto& entry : fs::directory_iterator(path() / "db")) {
      if (entry.path().extension() == ".sst") return entry.path();
    }
    return fs::path();
  }();
  // No manifest names these. In the end the copy does not have them.
  for (int i = 0; i < 200; ++i) {
    fs::copy(table, path() / "db" / (std::to_string(900000 + i) + ".sst"));
  }
  struct rlimit limit {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto num_open = std::distance(fs::directory_iterator("/proc/self/fd"), {});
  struct rlimit few = limit;
  few.rlim_cur = static_cast<rlim_t>(num_open + 100);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  VARVE_EXPECT_OK(BackUp(path(), copy()).status());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ExpectCopyHolds({1});
}

}  // namespace

}  // namespace varve::internal
