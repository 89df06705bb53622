// SPDX-License-Identifier: Apache-2.0
//
// What a reclaim knows without reading counts must equal what the counts say, and its cost must
// depend on what has changed.
#include "store/db/dead_space.h"

#include <rocksdb/convenience.h>
#include <rocksdb/perf_context.h>

#include <latch>
#include <map>
#include <thread>

#include "base/fair_mutex.h"
#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

TEST(FairMutexTest, WhoWaitsComesBeforeWhoAsksAgain) {
  FairMutex mutex;
  std::vector<int> order;
  mutex.lock();
  std::jthread other([&] {
    const std::lock_guard lock(mutex);
    order.push_back(2);
  });
  while (mutex.num_waiting_for_test() == 0) std::this_thread::yield();
  order.push_back(1);
  mutex.unlock();
  {
    const std::lock_guard lock(mutex);
    order.push_back(3);
  }
  other.join();
  EXPECT_THAT(order, ::testing::ElementsAre(1, 2, 3));
}

class DeadSpaceTest : public InternalsTest {
 protected:
  // Sizes of all dead frames, as the counts say.
  std::map<ChunkAddress, uint64_t> FindDead() {
    ReferenceCounts counts(database());
    std::map<ChunkAddress, uint64_t> dead;
    VARVE_EXPECT_OK(database()->Scan(
        Family::kBirths, "", [&](std::string_view key, std::string_view value) -> Status {
          const auto parsed = keys::ParseSave(key);
          if (parsed->block.has_value()) return Status::Ok();
          VARVE_ASSIGN_OR_RETURN(const SaveRecord record, DecodeSaveRecord(value));
          for (uint32_t ordinal = 0; ordinal < record.chunks; ++ordinal) {
            const ChunkAddress address{parsed->save_id, ordinal};
            VARVE_ASSIGN_OR_RETURN(const uint32_t count, counts.ChunkCount(address));
            if ((count & kDeadBit) != 0) dead[address] = count & kMaxCount;
          }
          return Status::Ok();
        }));
    return dead;
  }

  static void ExpectFiles(const std::vector<ChunkFile>& files,
                          const std::map<ChunkAddress, uint64_t>& dead, const std::string& when) {
    uint64_t found = 0;
    for (const ChunkFile& file : files) {
      uint64_t frames = 0, bytes = 0;
      for (auto it = dead.lower_bound(file.first); it != dead.end() && it->first <= file.last;
           ++it) {
        ++frames;
        bytes += it->second;
      }
      found += frames;
      EXPECT_EQ(file.frames - file.live_frames, frames) << when << file.name;
      EXPECT_EQ(file.DeadBytes(), bytes) << when << file.name;
    }
    EXPECT_EQ(found, dead.size()) << when;
  }

  // Files may be merged meanwhile, which changes no count.
  void ExpectAsCounted(const std::string& when) {
    const auto dead = FindDead();
    uint64_t bytes = 0;
    for (const auto& [address, frame_bytes] : dead) bytes += frame_bytes;
    EXPECT_EQ(impl()->DeadBytes().value(), bytes) << when;
    ExpectFiles(impl()->chunk_files_for_test().value(), dead, when + ", kept");
    DeadSpace anew;
    ReferenceCounts counts(database());
    VARVE_ASSERT_OK(anew.Refresh(*database(), &counts));
    EXPECT_EQ(anew.DeadBytes(), bytes) << when;
    ExpectFiles(anew.Files(), dead, when + ", anew");
  }
};

TEST_F(DeadSpaceTest, IsWhatTheCountsSay) {
  std::mt19937 random(23);
  std::set<uint64_t> steps;
  std::vector<TestTensor> state;
  for (int i = 0; i < 5; ++i) {
    state.push_back(RandomTensor("t" + std::to_string(i), DType::kU8, {3000 + 1000 * i}, i));
  }
  for (int round = 0; round < 40; ++round) {
    const auto action = random() % 10;
    if (action < 6 || steps.empty()) {
      for (TestTensor& t : state) {
        if (random() % 3 == 0) t.bytes[random() % t.bytes.size()] ^= std::byte{0x55};
      }
      const uint64_t step = random() % 30;
      VARVE_ASSERT_OK(Save(step, state, {.on_existing = OnExisting::kReplace}).status());
      steps.insert(step);
    } else if (action < 9) {
      const uint64_t step = *std::next(steps.begin(), static_cast<long>(random() % steps.size()));
      VARVE_ASSERT_OK(DropSteps({step}, {.reclaim = random() % 2 == 0}));
      steps.erase(step);
    } else {
      VARVE_ASSERT_OK(store_->Reclaim({.all = random() % 2 == 0}).status());
      if (random() % 2 == 0) Reopen();
    }
    ExpectAsCounted("round " + std::to_string(round));
  }
}

// Records of saves that opening a store reads, on this thread.
TEST_F(DeadSpaceTest, OpeningDoesNotReadAllSaves) {
  for (uint64_t step = 1; step <= 80; ++step) {
    VARVE_ASSERT_OK(Save(step, {RandomTensor("t", DType::kU8, {3000}, step)}).status());
  }
  VARVE_ASSERT_OK(DropSteps({7, 8, 9}, {.reclaim = false}));
  // A reclaim merges what lies side by side, unless the thread that does so is at it just now.
  const auto num_files = [&] { return ListChunkFiles(*database()).value().size(); };
  for (int i = 0; i < 100 && num_files() > 20; ++i) VARVE_ASSERT_OK(store_->Reclaim().status());
  const size_t files = num_files();
  ASSERT_LE(files, 20u);
  store_.reset();
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kEnableCount);
  rocksdb::get_perf_context()->Reset();
  store_ = Store::Open(path()).value();
  const uint64_t bytes = rocksdb::get_perf_context()->iter_read_bytes;
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
  EXPECT_LE(bytes, 400 * (files + 2));  // a look a file. The records of saves are about 12,000
  EXPECT_EQ(impl()->num_saves_visited_for_test(), 0u);
  VARVE_ASSERT_OK(Save(81, {RandomTensor("t", DType::kU8, {3000}, 81)}).status());
  EXPECT_EQ(impl()->num_saves_visited_for_test(), 0u);
  ExpectAsCounted("after opening");
}

// Changes of commits during the read of the save records count, and so do changes that undo them.
TEST_F(DeadSpaceTest, CommitsCountWhileItIsLearned) {
  const TestTensor a = RandomTensor("a", DType::kU8, {3000}, 1);
  const TestTensor b = RandomTensor("b", DType::kU8, {3000}, 2);
  VARVE_ASSERT_OK(Save(1, {a}).status());
  VARVE_ASSERT_OK(Save(2, {a, b}).status());
  const auto record = [&](uint64_t save_id) {
    return DecodeSaveRecord(Value(Family::kBirths, keys::Save(save_id))).value();
  };
  DeadSpace space, learned;
  space.BeginLearning();
  VARVE_ASSERT_OK(learned.Load(*database()));
  VARVE_ASSERT_OK(DropSteps({2}, {.reclaim = false}));
  const SaveRecord changed = record(2);
  EXPECT_EQ(changed.live_chunks, 0u);
  space.Note(2, &changed);
  space.Adopt(std::move(learned));
  ReferenceCounts counts(database());
  VARVE_ASSERT_OK(space.Refresh(*database(), &counts));
  EXPECT_EQ(space.DeadBytes(), impl()->DeadBytes().value());
  EXPECT_GT(space.DeadBytes(), 0u);
  DeadSpace late;
  VARVE_ASSERT_OK(late.Load(*database()));
  space.BeginLearning();
  space.Forget();  // a commit failed, and nobody knows what it has changed
  space.Adopt(std::move(late));
  EXPECT_FALSE(space.is_known());
}

// A save lies in several files. One of them dies in part and another as a whole.
TEST_F(DeadSpaceTest, ASaveInSeveralFilesIsCountedByFile) {
  std::vector<TestTensor> state;
  for (int i = 0; i < 12; ++i) {
    state.push_back(RandomTensor("t" + std::to_string(i), DType::kU8, {100'000}, i));
  }
  VARVE_ASSERT_OK(Save(1, state).status());
  // Cut as a save of more than 256 MiB would be.
  rocksdb::CompactionOptions options;
  options.compression = rocksdb::kNoCompression;
  options.output_file_size_limit = 300'000;
  std::vector<std::string> names;
  for (const TableFile& file : FilesOf(Family::kChunks)) {
    names.push_back("/" + file.path.filename().string());
  }
  auto* const chunks = database()->handle(Family::kChunks);
  ASSERT_TRUE(database()->rocksdb()->CompactFiles(options, chunks, names, 1).ok());
  ASSERT_GE(FilesOf(Family::kChunks).size(), 3u);
  ExpectAsCounted("before");
  state.erase(state.begin(), state.begin() + 5);
  VARVE_ASSERT_OK(Save(2, state).status());
  VARVE_ASSERT_OK(DropSteps({1}, {.reclaim = false}));
  ExpectAsCounted("after");
  EXPECT_GE(impl()->DeadBytes().value(), 500'000u);
  const ReclaimReport report = store_->Reclaim({.all = true}).value();
  EXPECT_GE(report.freed_bytes, 500'000u);
  EXPECT_EQ(report.pending_bytes, 0u);
  ExpectHolds(2, state);
}

// Merging does not hold the commit mutex, so files come and go while a reclaim lists them.
TEST_F(DeadSpaceTest, FilesMayBeMergedWhileTheyAreListed) {
  const auto in_progress = store_->Begin(1000).value();  // the store itself merges nothing
  for (uint64_t step = 1; step <= 64; ++step) {
    VARVE_ASSERT_OK(Save(step, {RandomTensor("t", DType::kU8, {100}, step)}).status());
  }
  std::atomic<bool> is_merging = true;
  std::jthread merger([&] {
    auto files = ListChunkFiles(*database()).value();
    for (bool ok = true; ok && files.size() > 1; files = ListChunkFiles(*database()).value()) {
      const rocksdb::Status merged = database()->rocksdb()->CompactFiles(
          {}, database()->handle(Family::kChunks), {files[0].name, files[1].name}, 1);
      EXPECT_TRUE(ok = merged.ok()) << merged.ToString();
    }
    is_merging = false;
  });
  // RocksDB writes the changes of two families into its manifest at once. A merge is then in effect
  // for a while before all that RocksDB answers shows it.
  std::jthread other_family([&] {
    rocksdb::DB* const db = database()->rocksdb();
    const auto handle = database()->handle(Family::kIndex);
    while (is_merging) {
      EXPECT_TRUE(db->Put({}, handle, "key", "value").ok());
      EXPECT_TRUE(db->Delete({}, handle, "key").ok());
      EXPECT_TRUE(db->Flush({}, handle).ok());
    }
  });
  ReferenceCounts counts(database());
  do {
    DeadSpace anew;
    VARVE_EXPECT_OK(anew.Refresh(*database(), &counts));
    EXPECT_EQ(anew.DeadBytes(), 0u);
    VARVE_EXPECT_OK(impl()->DeadBytes().status());
  } while (is_merging);
}

// A reclaim that was killed between its files and its counts.
TEST_F(DeadSpaceTest, FramesThatHaveLeftAreMarkedByTheNextReclaim) {
  const TestTensor kept = RandomTensor("b", DType::kU8, {3000}, 2);
  VARVE_ASSERT_OK(Save(1, {RandomTensor("a", DType::kU8, {3000}, 1)}).status());
  VARVE_ASSERT_OK(Save(2, {kept}).status());
  VARVE_ASSERT_OK(DropSteps({1}, {.reclaim = false}));
  const ChunkFile file = ListChunkFiles(*database()).value().front();
  const std::string first = keys::Chunk(file.first), last = keys::Chunk(file.last);
  const rocksdb::Slice begin(first), end(last);
  ASSERT_TRUE(rocksdb::DeleteFilesInRange(database()->rocksdb(),
                                          database()->handle(Family::kChunks), &begin, &end)
                  .ok());
  Reopen();
  VARVE_ASSERT_OK(store_->Reclaim().status());
  EXPECT_EQ(GetStats().pending_bytes, 0u);
  EXPECT_EQ(CountKeys(Family::kBirths), 2u);  // a record and a block
  ExpectHolds(2, {kept});
}

// Saves whose files lie apart: what a drop reads must not grow with their number.
TEST_F(DeadSpaceTest, ADropVisitsWhatItChanges) {
  const auto in_progress = store_->Begin(1000).value();  // nothing is merged
  std::vector<uint64_t> visited;
  uint64_t step = 1;
  for (const uint64_t saves : {16, 32, 64}) {
    for (; step <= saves; ++step) {
      std::vector<TestTensor> state = {RandomTensor("a", DType::kU8, {3000}, step),
                                       RandomTensor("b", DType::kU8, {3000}, 1000 + step / 2)};
      VARVE_ASSERT_OK(Save(step, state).status());
    }
    VARVE_ASSERT_OK(DropSteps({saves - 2}));
    const uint64_t before = impl()->num_saves_visited_for_test();
    VARVE_ASSERT_OK(DropSteps({saves - 5}));
    visited.push_back(impl()->num_saves_visited_for_test() - before);
  }
  EXPECT_LE(visited[0], 4u);
  EXPECT_EQ(visited[2], visited[0]);
}

// What a process has not written itself counts, too: a few tombstones are no reason to write all
// records anew.
TEST_F(DeadSpaceTest, ADropAfterOpeningLeavesTheRecordsOfOtherSteps) {
  std::vector<TestTensor> state;
  for (int i = 0; i < 200; ++i) {
    state.push_back(RandomTensor("t" + std::to_string(i), DType::kU8, {10}, i));
  }
  for (uint64_t step = 1; step <= 4; ++step) VARVE_ASSERT_OK(Save(step, state).status());
  Reopen();
  const auto tables = [&] {
    std::set<std::filesystem::path> paths;
    for (const TableFile& file : FilesOf(Family::kTensors)) paths.insert(file.path);
    return paths;
  };
  const auto before = tables();
  VARVE_ASSERT_OK(DropSteps({2}));
  EXPECT_THAT(tables(), ::testing::IsSupersetOf(before));
}

// Chunks die and come while a file is rewritten.
class BesideTest : public InternalsTest {
 protected:
  void SetUp() override {
    InternalsTest::SetUp();
    for (int i = 0; i < 8; ++i) {
      first_.push_back(RandomTensor("t" + std::to_string(i), DType::kU8, {100'000}, i));
    }
    kept_.assign(first_.begin(), first_.begin() + 5);
    VARVE_ASSERT_OK(Save(1, first_).status());
    VARVE_ASSERT_OK(Save(2, kept_).status());
    VARVE_ASSERT_OK(DropSteps({1}, {.reclaim = false}));
  }
  std::vector<TestTensor> first_, kept_;
};

// Were the rewriting under a lock that a commit takes, this would wait for ever.
TEST_F(BesideTest, CommitsDropsAndChecksEndWhileAFileIsRewritten) {
  std::latch rewriting(1), go_on(1);
  database()->dead_chunk_filter()->set_before_rewrite_for_test([&] {
    rewriting.count_down();
    go_on.wait();
  });
  Result<ReclaimReport> report = Status::Aborted("not run");
  std::jthread reclaim([&] { report = store_->Reclaim({.all = true}); });
  rewriting.wait();
  const TestTensor fresh = RandomTensor("fresh", DType::kU8, {3000}, 77);
  VARVE_EXPECT_OK(Save(3, {kept_[0], fresh}).status());
  VARVE_EXPECT_OK(Save(4, {first_[7]}).status());  // dead, and on its way out
  VARVE_EXPECT_OK(store_->SetTag({"main", 3}, "good"));
  const auto drop = store_->Drop(std::vector<CheckpointId>{{"main", 2}});
  VARVE_EXPECT_OK(drop.status());
  EXPECT_GE(drop.ok() ? drop->reclaim.pending_bytes : 0, 700'000u);
  ExpectSound();
  go_on.count_down();
  reclaim.join();
  database()->dead_chunk_filter()->set_before_rewrite_for_test(nullptr);
  VARVE_ASSERT_OK(report.status());
  EXPECT_GE(report->freed_bytes, 300'000u);
  ExpectSound();
  ExpectHolds(3, {kept_[0], fresh});
  ExpectHolds(4, {first_[7]});
  EXPECT_EQ(report->pending_bytes, GetStats().pending_bytes);
  EXPECT_EQ(store_->Reclaim({.all = true})->pending_bytes, 0u);
  ExpectHolds(3, {kept_[0], fresh});
}

TEST_F(BesideTest, ASaveEndsWhileACheckReads) {
  bool saved = false;
  const auto save = [&](uint64_t, uint64_t) {
    if (std::exchange(saved, true)) return;
    std::jthread([&] {
      VARVE_EXPECT_OK(Save(3, {kept_[1]}).status());
      VARVE_EXPECT_OK(DropSteps({2}));
      VARVE_EXPECT_OK(store_->Reclaim({.all = true}).status());
    }).join();
  };
  const auto check = store_->Check({.read_data = true, .progress = save});
  VARVE_ASSERT_OK(check.status());
  EXPECT_THAT(check->errors, ::testing::IsEmpty());
  EXPECT_TRUE(saved);
  EXPECT_EQ(check->num_steps, 1u);  // as it was before
  ExpectHolds(3, {kept_[1]});
}

// A save comes in between each time that a drop has written what it is about to commit, until the
// drop holds the commit mutex from the start.
TEST_F(BesideTest, ADropThatIsOvertakenCountsAnew) {
  VARVE_ASSERT_OK(Save(3, {kept_[0]}).status());  // what the saves are compared with
  uint64_t tries = 0;
  impl()->set_before_commit_for_test([&] {
    ++tries;
    VARVE_EXPECT_OK(Save(10 + tries, {kept_[tries]}).status());  // shares what the drop releases
  });
  VARVE_ASSERT_OK(DropSteps({2}, {.reclaim = false}));
  impl()->set_before_commit_for_test(nullptr);
  EXPECT_EQ(tries, 3u);
  ExpectSound();
  VARVE_ASSERT_OK(store_->Reclaim({.all = true}).status());
  ExpectSound();
  ExpectHolds(3, {kept_[0]});
  for (uint64_t i = 1; i <= tries; ++i) ExpectHolds(10 + i, {kept_[i]});
  EXPECT_EQ(GetStats().pending_bytes, 0u);
}

// A commit costs an ingest and a table in each family, however few steps it drops.
TEST_F(BesideTest, ADropOfManyStepsMakesFewCommits) {
  const std::string padding(1000, 'x');
  std::vector<TestTensor> state;
  for (int i = 0; i < 20; ++i) {
    state.push_back(RandomTensor(padding + std::to_string(i), DType::kU8, {10}, 1));
  }
  std::vector<uint64_t> steps;
  for (uint64_t step = 100; step < 300; ++step) {
    VARVE_ASSERT_OK(Save(step, state).status());
    steps.push_back(step);
  }
  const uint64_t before = database()->num_ingest_events();
  VARVE_ASSERT_OK(DropSteps(steps, {.reclaim = false}));
  // There are 4 MB of keys: 128 KiB, 256 KiB, and so on. An ingest is two events.
  EXPECT_LE(database()->num_ingest_events() - before, 2 * 6u);
  ExpectSound();
  ExpectHolds(2, kept_);
}

// Merging a family writes all of it. Small files are no reason for that.
TEST_F(BesideTest, ALargeTableIsNotMergedWithSmallOnes) {
  HoldMerges();
  std::vector<TestTensor> many;
  for (uint64_t i = 0; i < 20'000; ++i) {
    many.push_back(RandomTensor("t" + std::to_string(i), DType::kU8, {10}, i));
  }
  VARVE_ASSERT_OK(Save(3, many).status());
  const auto largest = [&] {
    std::pair<uint64_t, std::string> found;
    for (const TableFile& file : FilesOf(Family::kTensors)) {
      found = std::max(found, {std::filesystem::file_size(file.path), file.path.string()});
    }
    return found.second;
  };
  const std::string before = largest();
  for (uint64_t i = 0; i < 30; ++i) {
    VARVE_ASSERT_OK(Save(1, {many[i]}, {.run = "run" + std::to_string(i)}).status());
  }
  VARVE_ASSERT_OK(store_->Reclaim().status());
  EXPECT_GE(FilesOf(Family::kTensors).size(), 30u);
  EXPECT_EQ(largest(), before);
}

// A save that waits while a drop commits its first steps comes before the rest of them.
TEST_F(BesideTest, ACommitComesBetweenTheStepsOfADrop) {
  const std::string padding(1000, 'x');
  for (uint64_t step = 10; step < 50; ++step) {
    std::vector<TestTensor> state;
    for (int i = 0; i < 10; ++i) {
      state.push_back(RandomTensor(padding + std::to_string(i), DType::kU8, {10}, 1));
    }
    VARVE_ASSERT_OK(Save(step, state).status());
  }
  std::vector<CheckpointId> ids;
  for (uint64_t step = 10; step < 49; ++step) ids.push_back({"main", step});
  std::vector<bool> has_chunks;  // of each ingest: a save has them, a drop has not
  std::jthread save;
  database()->set_ingest_for_test([&](const std::vector<rocksdb::IngestExternalFileArg>& args) {
    if (has_chunks.empty()) {
      save = std::jthread([&] {
        VARVE_EXPECT_OK(Save(60, {RandomTensor("new", DType::kU8, {3000}, 60)}).status());
      });
      while (impl()->num_commits_waiting_for_test() == 0) std::this_thread::yield();
    }
    has_chunks.push_back(args[0].column_family == database()->handle(Family::kChunks));
    return database()->rocksdb()->IngestExternalFiles(args);
  });
  VARVE_EXPECT_OK(store_->Drop(ids, {.reclaim = false}).status());
  save.join();
  database()->set_ingest_for_test(nullptr);
  ASSERT_GE(has_chunks.size(), 3u);
  EXPECT_FALSE(has_chunks[0]);
  EXPECT_TRUE(has_chunks[1]);
  EXPECT_FALSE(has_chunks[2]);
}

}  // namespace
}  // namespace varve::internal::testing
