// SPDX-License-Identifier: Apache-2.0
//
// A manifest that has lost its end is damage, not an earlier state. Nothing else is mistaken for
// that.
#include "store/db/manifest_note.h"

#include <atomic>
#include <fstream>
#include <thread>

#include "base/util.h"
#include "store/db/manifest_log.h"
#include "store/db/spare_files.h"
#include "tests/store/store_fixture.h"
#include "varve/backup.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

class ManifestNoteTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    for (uint64_t step = 1; step <= 5; ++step) {
      VARVE_ASSERT_OK(Save(step, {RandomTensor("t", DType::kU8, {1000}, step)}).status());
    }
    store_.reset();
    manifest_ = path() / "db" / ReadSmallFile(path() / "db" / "CURRENT", 256).value();
    manifest_ = manifest_.string().substr(0, manifest_.string().find('\n'));
    bytes_ = ReadSmallFile(manifest_, 1 << 20).value();
  }
  void Put(std::string_view bytes) { std::ofstream(manifest_, std::ios::binary) << bytes; }
  fs::path note() const { return path() / kManifestNoteName; }
  void ExpectAllSteps() {
    store_ = Store::Open(path()).value();
    EXPECT_EQ(store_->ListCheckpoints("main").value().size(), 5u);
  }

  fs::path manifest_;
  std::string bytes_;
};

TEST_F(ManifestNoteTest, ALostEndIsDamage) {
  for (const size_t kept : {bytes_.size() - 1, bytes_.size() - 64, bytes_.size() / 2, size_t{0}}) {
    Put(bytes_.substr(0, kept));
    const std::string what = "has " + std::to_string(kept) + " bytes, expected at least ";
    EXPECT_THAT(Store::Open(path()), FailsWith(StatusCode::kCorruption, what));
    EXPECT_THAT(Store::OpenForReading(path()), FailsWith(StatusCode::kCorruption, what));
    EXPECT_THAT(BackUp(path(), folder_.path() / "copy", {}),
                FailsWith(StatusCode::kCorruption, what));
  }
  Put(bytes_);  // as the message says
  ExpectAllSteps();
}

// RocksDB takes zeros, unknown types and lengths beyond the end for the place where a writer died.
TEST_F(ManifestNoteTest, TheRecordsEndBeforeEachFlippedBit) {
  ASSERT_EQ(EndOfLogRecords(bytes_, LogChecksums::kCompare), bytes_.size());
  for (size_t at = 0; at < bytes_.size(); ++at) {
    std::string damaged = bytes_;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    EXPECT_LE(EndOfLogRecords(damaged, LogChecksums::kCompare), at) << at;
  }
}

TEST_F(ManifestNoteTest, NoDamageOfTheManifestHidesAStepWithoutAWord) {
  // Few, because opening is tried for 2 s before an error is believed.
  std::vector<std::string> damaged;
  for (const size_t behind : {bytes_.size(), bytes_.size() / 2, size_t{300}, size_t{1}}) {
    const size_t at = bytes_.size() - behind;
    damaged.push_back(bytes_);
    damaged.back()[at] = static_cast<char>(damaged.back()[at] ^ (1 << at % 8));
  }
  for (size_t zeros = 1; zeros < bytes_.size(); zeros *= 32) {
    damaged.push_back(bytes_.substr(0, bytes_.size() - zeros) + std::string(zeros, '\0'));
  }
  for (const std::string& bytes : damaged) {
    Put(bytes);
    const auto reader = Store::OpenForReading(path());
    if (!reader.ok()) {
      EXPECT_EQ(reader.status().code(), StatusCode::kCorruption) << reader.status().ToString();
      continue;
    }
    const auto steps = (*reader)->ListCheckpoints("main");
    EXPECT_TRUE(!steps.ok() || steps->size() == 5u);
  }
  Put(bytes_);
  ExpectAllSteps();
}

TEST_F(ManifestNoteTest, WithoutTheNoteTheCopyTells) {
  fs::remove(note());
  for (const size_t kept : {bytes_.size() - 64, bytes_.size() / 2}) {
    Put(bytes_.substr(0, kept));
    EXPECT_THAT(Store::Open(path()), FailsWith(StatusCode::kCorruption, "as in its copy"));
    EXPECT_THAT(Store::OpenForReading(path()), FailsWith(StatusCode::kCorruption, "end is lost"));
  }
  Put(bytes_);
  ExpectAllSteps();
}

// A new manifest stands before its note does.
TEST_F(ManifestNoteTest, WithTheNoteOfAnEarlierManifestTheCopyTells) {
  ManifestNote(path()).Write("MANIFEST-000001", 100);
  Put(bytes_.substr(0, bytes_.size() - 64));
  EXPECT_THAT(Store::Open(path()), FailsWith(StatusCode::kCorruption, "as in its copy"));
  EXPECT_THAT(Store::OpenForReading(path()), FailsWith(StatusCode::kCorruption, "end is lost"));
  Put(bytes_);
  ExpectAllSteps();
}

TEST_F(ManifestNoteTest, WithNeitherNoteNorCopyWhatIsLeftOpens) {
  Put(bytes_.substr(0, bytes_.size() - 64));
  fs::remove(note());
  fs::remove(SpareOfManifest(manifest_));
  store_ = Store::Open(path()).value();
  EXPECT_LT(store_->ListCheckpoints("main").value().size(), 5u);
}

TEST_F(ManifestNoteTest, ANoteThatSaysNothingHoldsNobodyUp) {
  const std::string good = ReadSmallFile(note(), 4096).value();
  std::string newer = good, of_another = good, flipped = good;
  newer[8] = 9;  // its version
  flipped[20] = static_cast<char>(flipped[20] ^ 1);
  for (const std::string& bytes : {std::string(), std::string("garbage"), newer, flipped}) {
    std::ofstream(note(), std::ios::binary) << bytes;
    VARVE_EXPECT_OK(CheckManifestLength(path()));
  }
  ManifestNote(path()).Write("MANIFEST-999999", 1 << 30);
  VARVE_EXPECT_OK(CheckManifestLength(path()));
  ManifestNote(path()).Write(manifest_.filename().string(), bytes_.size() + 1);
  EXPECT_THAT(CheckManifestLength(path()), FailsWith(StatusCode::kCorruption, "its end is lost"));
  fs::remove(note());
  ExpectAllSteps();
}

TEST_F(ManifestNoteTest, ReadersBesideAWriterSeeNoDamage) {
  store_ = Store::Open(path()).value();
  std::atomic<bool> done{false};
  std::atomic<int> looks{0};
  std::thread reader([&] {
    while (!done || looks == 0) {
      VARVE_EXPECT_OK(CheckManifestLength(path()));
      ++looks;
    }
  });
  for (uint64_t step = 6; step <= 60; ++step) {
    VARVE_EXPECT_OK(Save(step, {RandomTensor("t", DType::kU8, {1000}, step)}).status());
    if (step % 10 != 0) continue;
    store_.reset();  // the next one makes a manifest anew
    store_ = Store::Open(path()).value();
  }
  done = true;
  reader.join();
}

}  // namespace
}  // namespace varve::internal::testing
