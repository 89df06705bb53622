// SPDX-License-Identifier: Apache-2.0
//
// A reader that stays open while its writer starts new manifests. It opens its database anew then,
// while other threads read. The second half is meant for the thread sanitizer, too.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/store/internals.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

// One worker: the thread sanitizer does not see the hand-overs between TBB's workers.
const StoreOptions kOptions{.num_threads = 1};

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

  // A reader may wait before it opens its database anew.
  void CatchUpUntil(const std::function<bool()>& is_done) {
    for (int i = 0; i < 2000 && !is_done(); ++i) {
      reader_->CatchUp().IgnoreError();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(is_done());
    VARVE_EXPECT_OK(reader_->CatchUp());
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
// opens the database.
TEST_F(RenewTest, AnswersAreWholeOrNameTheTableThatIsLost) {
  uint64_t step = 1;
  int errors = 0;
  for (const Family family : {Family::kSteps, Family::kTensors, Family::kChunks, Family::kLists}) {
    StartManifest();
    ++step;
    VARVE_ASSERT_OK(Save(step, Content(step)).status());
    const fs::path lost = NewestTable(family);
    const fs::path away = lost.string() + ".away";
    fs::rename(lost, away);
    reader_->CatchUp().IgnoreError();
    const auto names_it = FailsWith(StatusCode::kCorruption, lost.filename().string());
    const auto steps = reader_->ListCheckpoints("main");
    if (steps.ok()) {
      EXPECT_EQ(steps->size(), step) << lost;
    } else {
      EXPECT_THAT(steps, names_it);
      ++errors;
    }
    const auto checkpoint = reader_->OpenCheckpoint("main", step);
    const auto list = checkpoint.ok() ? (*checkpoint)->List() : checkpoint.status();
    std::vector<std::byte> out(Content(step)[0].bytes.size());
    const Status read = list.ok() ? (*checkpoint)->Read("t", out) : list.status();
    if (list.ok()) {
      EXPECT_EQ(list->size(), 2u) << lost;
    }
    if (read.ok()) {
      EXPECT_TRUE(out == Content(step)[0].bytes) << lost;
    } else {
      EXPECT_THAT(read, names_it);
      ++errors;
    }
    fs::rename(away, lost);
  }
  EXPECT_GE(errors, 4);
  // Once nothing is lost, it follows again.
  StartManifest();
  ++step;
  VARVE_ASSERT_OK(Save(step, Content(step)).status());
  CatchUpUntil([&] { return seen()->num_renewals_for_test() > 0; });
  for (; step > 0; --step) ExpectHolds(*reader_, step, Content(step));
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
    int opens = 0;
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

// What RocksDB gave out for a Use belongs to it.
TEST_F(RenewTest, AUseKeepsItsDatabase) {
  const Database::Use use = seen()->BeginRead().value();
  const auto count = [&](rocksdb::Iterator* at) {
    int keys = 0;
    for (at->SeekToFirst(); at->Valid(); at->Next()) ++keys;
    EXPECT_TRUE(at->status().ok()) << at->status().ToString();
    return keys;
  };
  const std::unique_ptr<rocksdb::Iterator> at(
      use.rocksdb()->NewIterator(rocksdb::ReadOptions(), use.handle(Family::kSteps)));
  rocksdb::PinnableSlice frame;
  const auto files = seen()->FilesOf(Family::kChunks);
  const ChunkAddress address = *keys::ParseChunk(files.front().smallestkey);
  VARVE_ASSERT_OK(seen()->GetFrame(address, &frame));
  const std::string bytes = frame.ToString();
  StartManifest();
  VARVE_ASSERT_OK(Save(2, Content(2)).status());
  VARVE_ASSERT_OK(reader_->CatchUp());
  ASSERT_EQ(seen()->num_renewals_for_test(), 1u);
  EXPECT_EQ(count(at.get()), 1);
  const Database::Use later = seen()->BeginRead().value();
  EXPECT_NE(later.rocksdb(), use.rocksdb());
  const std::unique_ptr<rocksdb::Iterator> now(
      later.rocksdb()->NewIterator(rocksdb::ReadOptions(), later.handle(Family::kSteps)));
  EXPECT_EQ(count(now.get()), 2);
  EXPECT_EQ(frame.ToString(), bytes);
}

// A view that was frozen before another thread asked to catch up stays as it is.
TEST_F(RenewTest, AFrozenViewStays) {
  auto* const impl = static_cast<StoreImpl*>(reader_.get());
  VARVE_ASSERT_OK(impl->WithFrozenView([&]() -> Status {
    StartManifest();
    VARVE_RETURN_IF_ERROR(Save(2, Content(2)).status());
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] { VARVE_EXPECT_OK(reader_->CatchUp()); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(seen()->num_renewals_for_test(), 0u);
    return Status::Ok();
  }));
  VARVE_ASSERT_OK(reader_->CatchUp());
  EXPECT_EQ(reader_->LatestStep("main").value(), 2u);
}

// Several threads read through one handle, and some catch up.
TEST_F(RenewTest, ThreadsReadWhileTheDatabaseIsOpenedAnew) {
  constexpr uint64_t kLeastRenewals = 5;
  constexpr uint64_t kMostSteps = 400;
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
  for (uint64_t step = 3; step <= kMostSteps; ++step) {
    StartManifest();
    VARVE_EXPECT_OK(Save(step, Content(step)).status());
    newest = step;
    if (step > 4) VARVE_EXPECT_OK(DropSteps({step - 4}));
    if (step % 5 == 0) VARVE_EXPECT_OK(store_->Reclaim({.all = true}).status());
    if (seen()->num_renewals_for_test() >= kLeastRenewals && step > 10) break;
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(seen()->num_renewals_for_test(), kLeastRenewals);
  EXPECT_GT(reads, 0u);
}

}  // namespace
}  // namespace varve::internal::testing
