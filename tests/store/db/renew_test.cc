// SPDX-License-Identifier: Apache-2.0
//
// A reader that stays open while its writer starts new manifests. It opens its database anew then,
// while other threads read. The second half is meant for the thread sanitizer, too.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/util.h"
#include "store/db/manifest_tables.h"
#include "tests/store/internals.h"
#include "tests/support/comes_true.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

// One worker: the thread sanitizer does not see the hand-overs between TBB's workers.
const StoreOptions kOptions{.num_threads = 1};

MATCHER_P(Is, number, "") {
  *result_listener << arg.status().ToString();
  return arg.ok() && *arg == number;
}

class RenewTest : public InternalsTest {
 protected:
  void SetUp() override {
    CreateOptions options;
    options.store = kOptions;
    Reset(options);
    VARVE_ASSERT_OK(Save(1, Content(1)).status());
    auto reader = Store::OpenForReading(path(), kOptions);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    reader_ = *std::move(reader);
  }

  void TearDown() override {
    reader_.reset();
    Reopen(kOptions);
    ExpectSound();
  }

  static std::vector<TestTensor> Content(uint64_t step) {
    return {RandomTensor("t", DType::kU8, {20000}, step),
            RandomTensor("u", DType::kU8, {300}, step)};
  }

  Database* seen() { return static_cast<StoreImpl*>(reader_.get())->database(); }

  // The writer starts a new manifest.
  void StartManifest() { Reopen(kOptions); }

  // Before a reader opens its database anew, it may wait for 20 times as long as the last time
  // took.
  void CatchUpUntil(const std::function<bool()>& is_done) {
    EXPECT_TRUE(ComesTrue([&] {
      if (is_done()) return true;
      reader_->CatchUp().IgnoreError();
      return false;
    }));
    VARVE_EXPECT_OK(reader_->CatchUp());
  }

  // A family of a newer writer, which the reader has not opened. RocksDB 7.8 fails when it catches
  // up and comes to a table of it, and each time after that.
  void AddFamily(const std::string& name) {
    rocksdb::ColumnFamilyHandle* family = nullptr;
    auto* const db = database()->rocksdb();
    ASSERT_TRUE(db->CreateColumnFamily(rocksdb::ColumnFamilyOptions(), name, &family).ok());
    AddTableTo(family);
    ASSERT_TRUE(db->DestroyColumnFamilyHandle(family).ok());
  }
  void AddTableTo(rocksdb::ColumnFamilyHandle* family) {
    rocksdb::WriteOptions no_log;
    no_log.disableWAL = true;
    auto* const db = database()->rocksdb();
    ASSERT_TRUE(db->Put(no_log, family, "key", "value").ok());
    ASSERT_TRUE(db->Flush(rocksdb::FlushOptions(), family).ok());
  }

  // This process may open so many more files.
  class DescriptorsLeft {
   public:
    explicit DescriptorsLeft(size_t left) {
      EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
      rlimit limit = before_;
      limit.rlim_cur = left + CountIn("/proc/self/fd");
      EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    }
    DescriptorsLeft(const DescriptorsLeft&) = delete;
    DescriptorsLeft& operator=(const DescriptorsLeft&) = delete;
    ~DescriptorsLeft() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

   private:
    rlimit before_{};
  };
  static size_t CountIn(const fs::path& folder) {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder), {}));
  }

  // Returns whether the step is there as a whole, or why not.
  Status Read(uint64_t step) {
    VARVE_ASSIGN_OR_RETURN(const auto checkpoint, reader_->OpenCheckpoint("main", step));
    VARVE_ASSIGN_OR_RETURN(const auto list, checkpoint->List());
    EXPECT_EQ(list.size(), Content(step).size());
    for (const TestTensor& tensor : Content(step)) {
      std::vector<std::byte> out(tensor.bytes.size());
      VARVE_RETURN_IF_ERROR(checkpoint->Read(tensor.name, out));
      EXPECT_TRUE(out == tensor.bytes) << step << " " << tensor.name;
    }
    return Status::Ok();
  }
  Result<size_t> CountListed(uint64_t step) {
    VARVE_ASSIGN_OR_RETURN(const auto checkpoint, reader_->OpenCheckpoint("main", step));
    VARVE_ASSIGN_OR_RETURN(const auto list, checkpoint->List());
    return list.size();
  }
  Result<size_t> CountSteps() {
    VARVE_ASSIGN_OR_RETURN(const auto steps, reader_->ListCheckpoints("main"));
    return steps.size();
  }

  uint64_t CountKeysSeen(Family family) {
    uint64_t keys = 0;
    VARVE_EXPECT_OK(seen()->Scan(family, "", [&](std::string_view, std::string_view) {
      ++keys;
      return Status::Ok();
    }));
    return keys;
  }

  fs::path NewestTable(Family family) {
    fs::path newest;
    for (const TableFile& file : FilesOf(family)) newest = std::max(newest, file.path);
    return newest;
  }

  std::unique_ptr<Store> reader_;
};

TEST_F(RenewTest, OpensTheDatabaseAnewForANewManifestOnly) {
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  VARVE_ASSERT_OK(reader_->CatchUp());
  ExpectHolds(*reader_, 2, Content(2));
  EXPECT_EQ(seen()->num_renewals_for_test(), 0u);
  StartManifest();
  VARVE_ASSERT_OK(Save(3, Content(3)).status());
  VARVE_ASSERT_OK(reader_->CatchUp());
  EXPECT_EQ(seen()->num_renewals_for_test(), 1u);
  for (const uint64_t step : {1, 2, 3}) ExpectHolds(*reader_, step, Content(step));
}

// It waits before it does so again, but it misses nothing.
TEST_F(RenewTest, SeesEveryStepOfManyManifests) {
  for (uint64_t step = 2; step < 12; ++step) {
    StartManifest();
    VARVE_ASSERT_OK(Save(step, Content(step)).status());
    VARVE_ASSERT_OK(reader_->CatchUp());
    EXPECT_EQ(reader_->LatestStep("main").value(), step);
    ExpectHolds(*reader_, step, Content(step));
  }
  EXPECT_GE(seen()->num_renewals_for_test(), 1u);
}

// RocksDB shows less than the manifest names, without an error, when a table is not there while it
// opens the database. What does not need the table has an answer.
TEST_F(RenewTest, AnswersAreWholeOrNameTheTableThatIsLost) {
  struct Case {
    Family family;
    bool has_steps, has_lists;
  };
  uint64_t step = 1;
  constexpr Case kCases[] = {{Family::kSteps, false, false},
                             {Family::kTensors, true, false},
                             {Family::kChunks, true, true},
                             {Family::kLists, true, true}};
  for (const auto& [family, has_steps, has_lists] : kCases) {
    StartManifest();
    ++step;
    VARVE_ASSERT_OK(Save(step, Content(step)).status());
    const fs::path lost = NewestTable(family);
    const fs::path away = lost.string() + ".away";
    fs::rename(lost, away);
    VARVE_EXPECT_OK(reader_->CatchUp());
    const auto names_it = FailsWith(StatusCode::kCorruption, lost.filename().string());
    const auto steps = CountSteps();
    const auto listed = CountListed(step);
    if (has_steps) {
      EXPECT_THAT(steps, Is(step)) << lost;
    } else {
      EXPECT_THAT(steps, names_it);
    }
    if (has_lists) {
      EXPECT_THAT(listed, Is(2u)) << lost;
    } else {
      EXPECT_THAT(listed, names_it);
    }
    EXPECT_THAT(Read(step), names_it);
    const CheckpointId dropped{"main", step};
    EXPECT_THAT(reader_->ForecastDrop({&dropped, 1}), names_it);
    // Once it is back, the reader finds it without another commit.
    fs::rename(away, lost);
    CatchUpUntil([&] { return Read(step).ok(); });
    EXPECT_THAT(CountSteps(), Is(step));
  }
  for (; step > 0; --step) ExpectHolds(*reader_, step, Content(step));
}

// RocksDB shows less of the family from the start of the catch-up on, and the reader knows why at
// its end.
TEST_F(RenewTest, AReadDuringACatchUpWaitsForWhatIsLost) {
  StartManifest();
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  const fs::path lost = NewestTable(Family::kSteps);
  fs::rename(lost, lost.string() + ".away");
  std::vector<std::future<Status>> reads;
  const auto read = [&](const std::function<Status()>& ask) {
    reads.push_back(std::async(std::launch::async, ask));
    reads.back().wait_for(std::chrono::milliseconds(50));
  };
  const std::string key = seen()->LastKey(Family::kSteps, "").value().value();
  const auto found = [](bool is_found) {
    return is_found ? Status::Ok() : Status::NotFound("an older state");
  };
  seen()->set_before_compare_for_test([&] {
    read([&]() -> Status {
      VARVE_ASSIGN_OR_RETURN(const auto last, seen()->LastKey(Family::kSteps, ""));
      return found(last.has_value());
    });
    read([&]() -> Status {
      VARVE_ASSIGN_OR_RETURN(const auto value, seen()->Get(Family::kSteps, key));
      return found(value.has_value());
    });
  });
  VARVE_EXPECT_OK(reader_->CatchUp());
  seen()->set_before_compare_for_test({});
  size_t errors = 0;
  for (auto& each : reads) {
    const Status status = each.get();
    if (status.ok()) continue;  // it was before the catch-up
    EXPECT_THAT(status, FailsWith(StatusCode::kCorruption, lost.filename().string()));
    ++errors;
  }
  EXPECT_GE(errors, 2u);
  fs::rename(lost.string() + ".away", lost);
  CatchUpUntil([&] { return Read(2).ok(); });
}

// RocksDB does not look again for a table that it has missed once.
TEST_F(RenewTest, AFamilyThatRocksDbHoldsBackFailsAlone) {
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  const auto away = [](const fs::path& table) { return fs::path(table.string() + ".away"); };
  const fs::path tensors = NewestTable(Family::kTensors);
  fs::rename(tensors, away(tensors));
  VARVE_EXPECT_OK(reader_->CatchUp());
  EXPECT_THAT(Read(2), FailsWith(StatusCode::kCorruption, tensors.filename().string()));
  // The reader has this one open, but cannot open it anew.
  const fs::path chunks = NewestTable(Family::kChunks);
  fs::rename(chunks, away(chunks));
  fs::rename(away(tensors), tensors);
  VARVE_ASSERT_OK(Save(3, Content(3)).status());
  VARVE_EXPECT_OK(reader_->CatchUp());
  EXPECT_THAT(CountSteps(), Is(3u));
  for (const uint64_t step : {2, 3}) {
    EXPECT_THAT(Read(step), FailsWith(StatusCode::kIOError, "family tensors"));
    EXPECT_THAT(Read(step), FailsWith(StatusCode::kIOError, path().string()));
  }
  EXPECT_EQ(seen()->num_renewals_for_test(), 0u);
  fs::rename(away(chunks), chunks);
  CatchUpUntil([&] { return Read(3).ok(); });
  for (const uint64_t step : {1, 2, 3}) ExpectHolds(*reader_, step, Content(step));
}

TEST_F(RenewTest, AFamilyOfANewerWriterIsLeftAlone) {
  rocksdb::ColumnFamilyHandle* family = nullptr;
  auto* const db = database()->rocksdb();
  ASSERT_TRUE(db->CreateColumnFamily(rocksdb::ColumnFamilyOptions(), "later", &family).ok());
  for (uint64_t step = 2; step <= 4; ++step) {
    AddTableTo(family);
    VARVE_EXPECT_OK(Save(step, Content(step)).status());
    VARVE_EXPECT_OK(reader_->CatchUp());
    VARVE_EXPECT_OK(Read(step));
    EXPECT_THAT(CountSteps(), Is(step));
    EXPECT_EQ(seen()->num_renewals_for_test(), 1u);
  }
  ASSERT_TRUE(db->DestroyColumnFamilyHandle(family).ok());
  StartManifest();
  VARVE_ASSERT_OK(Save(5, Content(5)).status());
  VARVE_ASSERT_OK(reader_->CatchUp());
  for (uint64_t step = 1; step <= 5; ++step) ExpectHolds(*reader_, step, Content(step));
}

// What is left of a manifest without its end is an earlier state.
TEST_F(RenewTest, AManifestThatHasLostItsEndIsNotFollowed) {
  for (const bool is_renewed : {false, true}) {
    const uint64_t step = is_renewed ? 3 : 2;
    if (is_renewed) AddFamily("later");
    VARVE_ASSERT_OK(Save(step, Content(step)).status());
    std::string name = ReadSmallFile(path() / "db" / "CURRENT", 256).value();
    name.pop_back();
    const fs::path manifest = path() / "db" / name;
    const std::string whole = ReadSmallFile(manifest, 1 << 20).value();
    std::vector<size_t> ends;  // of states
    EXPECT_TRUE(VisitManifestStates(whole, 0, [&](const ManifestTables&, size_t end) {
                  ends.push_back(end);
                }).has_value());
    ASSERT_GT(ends.size(), 2u);
    for (const size_t size : {ends[ends.size() - 2], whole.size() - 1}) {
      fs::resize_file(manifest, size);
      for (int i = 0; i < 3; ++i) {
        EXPECT_THAT(reader_->CatchUp(), FailsWith(StatusCode::kCorruption, "its end is lost"));
        EXPECT_THAT(CountSteps(), FailsWith(StatusCode::kCorruption, "its end is lost"));
        EXPECT_FALSE(Read(step).ok());
        EXPECT_NE(Read(step).code(), StatusCode::kNotFound);
      }
    }
    std::ofstream(manifest, std::ios::binary | std::ios::in | std::ios::out) << whole;
    CatchUpUntil([&] { return Read(step).ok(); });
    EXPECT_THAT(CountSteps(), Is(step));
  }
  EXPECT_GE(seen()->num_renewals_for_test(), 1u);
}

TEST_F(RenewTest, AReaderThatMayOpenFewMoreFilesIsNotOpenedAnew) {
  StartManifest();
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  {
    const DescriptorsLeft few(CountIn(path() / "db"));
    VARVE_EXPECT_OK(reader_->CatchUp());
    EXPECT_EQ(seen()->num_renewals_for_test(), 0u);
    VARVE_EXPECT_OK(Read(2));
  }
  CatchUpUntil([&] { return seen()->num_renewals_for_test() > 0; });
  // If it must be, the error says what to do, and no answer is older.
  AddFamily("later");
  VARVE_ASSERT_OK(Save(3, Content(3)).status());
  {
    const DescriptorsLeft few(CountIn(path() / "db"));
    EXPECT_THAT(reader_->CatchUp(), FailsWith(StatusCode::kCorruption, "ulimit"));
    EXPECT_THAT(CountSteps(), FailsWith(StatusCode::kCorruption, path().string()));
    EXPECT_THAT(seen()->LastKey(Family::kSteps, ""), FailsWith(StatusCode::kCorruption, "ulimit"));
  }
  CatchUpUntil([&] { return Read(3).ok(); });
  EXPECT_THAT(CountSteps(), Is(3u));
}

// A reader that cannot go on tries again after each commit, and else only now and then.
TEST_F(RenewTest, AReaderThatCannotBeOpenedAnewSeldomTriesTo) {
  using std::chrono::milliseconds;
  constexpr milliseconds kTime(10), kPause = 20 * kTime;
  std::atomic<int> opens = 0;
  seen()->set_after_open_for_test([&] {
    ++opens;
    std::this_thread::sleep_for(kTime);
  });
  AddFamily("later");
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  const fs::path lost = NewestTable(Family::kTensors);
  fs::rename(lost, lost.string() + ".away");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 30; ++i) {
    EXPECT_FALSE(reader_->CatchUp().ok());
    EXPECT_FALSE(CountSteps().ok());
  }
  EXPECT_GE(opens, 1);
  EXPECT_LE(opens, 1 + (std::chrono::steady_clock::now() - start) / kPause);
  const int before = opens;
  VARVE_ASSERT_OK(store_->SetTag({"main", 1}, "tag"));
  EXPECT_FALSE(reader_->CatchUp().ok());
  EXPECT_GE(opens, before + 1);
  seen()->set_after_open_for_test({});
  fs::rename(lost.string() + ".away", lost);
  CatchUpUntil([&] { return Read(2).ok(); });
}

// A commit between what RocksDB reads and what the reader compares it with, each time.
TEST_F(RenewTest, AWriterThatIsAlwaysFasterHoldsUpNoReader) {
  std::atomic<int> commits = 0, looks = 0;
  const auto commit = [&] {
    VARVE_EXPECT_OK(store_->SetTag({"main", 1}, "tag" + std::to_string(++commits % 3)));
  };
  seen()->set_before_compare_for_test([&] {
    ++looks;
    commit();
  });
  for (int i = 0; i < 10; ++i) {
    commit();
    VARVE_EXPECT_OK(reader_->CatchUp());
  }
  EXPECT_GE(looks, 5);
  EXPECT_LE(looks, 15);
  StartManifest();
  commit();
  VARVE_EXPECT_OK(reader_->CatchUp());
  EXPECT_EQ(seen()->num_renewals_for_test(), 1u);
  // Nor does it when a table is lost, nor does any other family fail.
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  const fs::path lost = NewestTable(Family::kChunks);
  fs::rename(lost, lost.string() + ".away");
  VARVE_EXPECT_OK(reader_->CatchUp());
  EXPECT_THAT(CountSteps(), Is(2u));
  EXPECT_THAT(CountListed(2), Is(2u));
  EXPECT_THAT(Read(2), FailsWith(StatusCode::kCorruption, lost.filename().string()));
  fs::rename(lost.string() + ".away", lost);
  seen()->set_before_compare_for_test({});
  CatchUpUntil([&] { return Read(2).ok(); });
}

// RocksDB shows the new state of some families then, and nobody has looked at the others.
TEST_F(RenewTest, ACatchUpThatThrowsGivesNoAnswer) {
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  const fs::path lost = NewestTable(Family::kTensors);
  fs::rename(lost, lost.string() + ".away");
  seen()->set_before_compare_for_test([] { throw std::bad_alloc(); });
  EXPECT_THAT(reader_->CatchUp(), FailsWith(StatusCode::kUnavailable, "bad_alloc"));
  for (const Family family : {Family::kSteps, Family::kTensors, Family::kLists}) {
    EXPECT_THAT(seen()->LastKey(family, ""), FailsWith(StatusCode::kUnavailable, "bad_alloc"));
  }
  EXPECT_FALSE(CountSteps().ok());
  seen()->set_before_compare_for_test({});
  fs::rename(lost.string() + ".away", lost);
  CatchUpUntil([&] { return Read(2).ok(); });
  EXPECT_THAT(CountSteps(), Is(2u));
}

// Reads wait a moment for a thread that opens the database anew, and then go on.
TEST_F(RenewTest, ReadsDoNotWaitForARenewal) {
  StartManifest();
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  std::promise<void> opened, go_on;
  std::atomic<int> opens = 0;
  const auto may_go_on = go_on.get_future().share();
  seen()->set_after_open_for_test([&] {
    if (++opens == 1) opened.set_value();
    may_go_on.wait_for(std::chrono::seconds(100));
  });
  std::thread catching_up([&] { VARVE_EXPECT_OK(reader_->CatchUp()); });
  opened.get_future().wait();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(CountSteps(), Is(1u));
    VARVE_EXPECT_OK(Read(1));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(90));
  go_on.set_value();
  catching_up.join();
  seen()->set_after_open_for_test({});
  EXPECT_THAT(CountSteps(), Is(2u));
}

TEST_F(RenewTest, ABurstOfCommitsHoldsUpNoReader) {
  std::atomic<bool> done = false;
  std::atomic<int> commits = 0;
  std::thread writer([&] {
    while (!done) {
      VARVE_EXPECT_OK(store_->SetTag({"main", 1}, "tag" + std::to_string(++commits % 3)));
    }
  });
  for (int i = 0; i < 60 || (commits <= 10 && i < 100000); ++i) {
    VARVE_EXPECT_OK(reader_->CatchUp());
    VARVE_EXPECT_OK(Read(1));
    if (i % 4 == 0) VARVE_EXPECT_OK(Store::OpenForReading(path(), kOptions).status());
  }
  done = true;
  writer.join();
  EXPECT_GT(commits, 10);
}

// A family that lacks a table has shown no state when the database was opened. If the writer has
// another manifest by then, RocksDB must not be asked to catch up: it would abort the process.
TEST_F(RenewTest, ATableThatComesBackBesideANewManifestIsNoAbort) {
  for (const Family family : {Family::kMeta, Family::kTensors, Family::kChunks}) {
    StartManifest();
    VARVE_ASSERT_OK(store_->SetTag({"main", 1}, "tag"));
    const fs::path table = NewestTable(family);
    const fs::path away = table.string() + ".away";
    const uint64_t renewals = seen()->num_renewals_for_test();
    std::atomic<int> opens = 0;
    seen()->set_after_open_for_test([&] {
      if (++opens > 1) return;
      fs::rename(away, table);
      StartManifest();
    });
    fs::rename(table, away);
    CatchUpUntil([&] { return opens > 0; });
    CatchUpUntil([&] { return seen()->num_renewals_for_test() > renewals; });
    EXPECT_EQ(seen()->num_renewals_for_test(), renewals + 1);
    seen()->set_after_open_for_test({});
    ExpectHolds(*reader_, 1, Content(1));
  }
}

// What RocksDB gave out for a Use belongs to it. The last Use closes it, and a frame may stay.
TEST_F(RenewTest, AUseKeepsItsDatabase) {
  const auto steps_of = [](const Database::Use& use) {
    return std::unique_ptr<rocksdb::Iterator>(
        use.rocksdb()->NewIterator(rocksdb::ReadOptions(), use.handle(Family::kSteps)));
  };
  const auto keys_of = [](rocksdb::Iterator* at) {
    int keys = 0;
    for (at->SeekToFirst(); at->Valid(); at->Next()) ++keys;
    EXPECT_TRUE(at->status().ok()) << at->status().ToString();
    return keys;
  };
  rocksdb::PinnableSlice frame;
  std::string bytes;
  const auto num_open = [&] {
    size_t open = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      const std::string file = fs::read_symlink(entry.path(), ignored);
      open += file.ends_with(".sst") ? 1 : 0;
    }
    return open;
  };
  size_t before = 0;
  {
    const Database::Use use = seen()->BeginRead().value();
    const auto at = steps_of(use);
    const auto files = seen()->FilesOf(Family::kChunks);
    const ChunkAddress address = *keys::ParseChunk(files.front().smallestkey);
    VARVE_ASSERT_OK(seen()->GetFrame(address, &frame));
    bytes = frame.ToString();
    StartManifest();
    VARVE_ASSERT_OK(Save(2, Content(2)).status());
    VARVE_ASSERT_OK(reader_->CatchUp());
    ASSERT_EQ(seen()->num_renewals_for_test(), 1u);
    EXPECT_EQ(keys_of(at.get()), 1);
    const Database::Use later = seen()->BeginRead().value();
    EXPECT_NE(later.rocksdb(), use.rocksdb());
    EXPECT_EQ(keys_of(steps_of(later).get()), 2);
    before = num_open();
  }
  EXPECT_LT(num_open(), before);  // the old one is closed
  EXPECT_EQ(frame.ToString(), bytes);
}

// A view waits for a catch-up that is under way, and then stays as it is.
TEST_F(RenewTest, AFrozenViewStays) {
  auto* const impl = static_cast<StoreImpl*>(reader_.get());
  StartManifest();
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  std::promise<void> opened, go_on;
  seen()->set_after_open_for_test([&] {
    opened.set_value();
    go_on.get_future().wait();
  });
  std::thread catching_up([&] { VARVE_EXPECT_OK(reader_->CatchUp()); });
  opened.get_future().wait();
  std::atomic<bool> is_frozen = false;
  std::thread viewing([&] {
    const Status viewed = impl->WithFrozenView([&]() -> Status {
      is_frozen = true;
      EXPECT_EQ(seen()->num_renewals_for_test(), 1u);
      StartManifest();
      VARVE_RETURN_IF_ERROR(Save(3, Content(3)).status());
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] { VARVE_EXPECT_OK(reader_->CatchUp()); });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_EQ(seen()->num_renewals_for_test(), 1u);
      EXPECT_EQ(CountKeysSeen(Family::kSteps), 2u);
      return Status::Ok();
    });
    VARVE_EXPECT_OK(viewed);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(is_frozen);
  go_on.set_value();
  catching_up.join();
  viewing.join();
  EXPECT_TRUE(is_frozen);
  seen()->set_after_open_for_test({});
  VARVE_ASSERT_OK(reader_->CatchUp());
  EXPECT_EQ(reader_->LatestStep("main").value(), 3u);
}

// Several threads read through one handle, and some catch up.
TEST_F(RenewTest, ThreadsReadWhileTheDatabaseIsOpenedAnew) {
  constexpr uint64_t kLeastRenewals = 5;
  std::atomic<bool> done = false;
  std::atomic<uint64_t> newest = 1, reads = 0;
  const auto look = [&] {
    while (!done) {
      const uint64_t saved = newest;
      VARVE_EXPECT_OK(reader_->CatchUp());
      const auto latest = reader_->LatestStep("main");
      ASSERT_TRUE(latest.ok()) << latest.status().ToString();
      ASSERT_TRUE(latest->has_value());
      EXPECT_GE(**latest, saved);
      const auto steps = reader_->ListCheckpoints("main");
      ASSERT_TRUE(steps.ok()) << steps.status().ToString();
      EXPECT_GE(steps->size(), 2u);
    }
  };
  const auto read = [&] {
    while (!done) {
      const uint64_t step = newest;
      const auto checkpoint = reader_->OpenCheckpoint("main", step);
      if (checkpoint.status().code() == StatusCode::kNotFound)
        continue;  // not seen yet, or dropped
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
      const auto list = (*checkpoint)->List();
      if (list.status().code() == StatusCode::kNotFound) continue;
      ASSERT_TRUE(list.ok()) << list.status().ToString();
      EXPECT_EQ(list->size(), 2u);
      for (const TestTensor& tensor : Content(step)) {
        std::vector<std::byte> out(tensor.bytes.size());
        const Status status = (*checkpoint)->Read(tensor.name, out);
        if (status.code() == StatusCode::kNotFound) continue;  // dropped meanwhile
        EXPECT_TRUE(status.ok()) << status.ToString();
        EXPECT_TRUE(out == tensor.bytes) << step;
      }
      ++reads;
    }
  };
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  newest = 2;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back(look);
  for (int i = 0; i < 3; ++i) threads.emplace_back(read);
  uint64_t step = 2;
  const bool is_enough = ComesTrue([&] {
    ++step;
    StartManifest();
    VARVE_EXPECT_OK(Save(step, Content(step)).status());
    newest = step;
    if (step > 4) VARVE_EXPECT_OK(DropSteps({step - 4}));
    if (step % 5 == 0) VARVE_EXPECT_OK(store_->Reclaim({.all = true}).status());
    return seen()->num_renewals_for_test() >= kLeastRenewals && step > 10 && reads > 0;
  });
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_enough) << seen()->num_renewals_for_test() << " renewals, " << reads << " reads";
}

}  // namespace
}  // namespace varve::internal::testing
