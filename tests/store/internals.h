// SPDX-License-Identifier: Apache-2.0
//
// A store test that looks below the public interface: keys and table files of the store's database,
// and changes made behind the store's back. One thread at a time.
#pragma once

#include <string>
#include <vector>

#include "store/db/store_impl.h"
#include "tests/store/store_fixture.h"

namespace varve::internal::testing {

class InternalsTest : public StoreTest {
 protected:
  StoreImpl* impl() { return static_cast<StoreImpl*>(store_.get()); }
  Database* database() { return impl()->database(); }

  uint64_t CountKeys(Family family) {
    uint64_t keys = 0;
    VARVE_EXPECT_OK(database()->Scan(family, "", [&](std::string_view, std::string_view) {
      ++keys;
      return Status::Ok();
    }));
    return keys;
  }

  std::string Value(Family family, const std::string& key) {
    return database()->Get(family, key).value().value();
  }

  // Every family that a store without steps leaves empty.
  void ExpectNoKeys() {
    for (const Family family :
         {Family::kSteps, Family::kState, Family::kTensors, Family::kLists, Family::kChunks,
          Family::kBirths, Family::kCounts, Family::kIndex}) {
      EXPECT_EQ(CountKeys(family), 0u) << kFamilyNames[static_cast<int>(family)];
    }
  }

  // The files of a family with the level each lies in.
  struct TableFile {
    std::filesystem::path path;
    int level;
    uint64_t num_deletions;
  };
  std::vector<TableFile> FilesOf(Family family) {
    rocksdb::ColumnFamilyMetaData data;
    database()->rocksdb()->GetColumnFamilyMetaData(database()->handle(family), &data);
    std::vector<TableFile> files;
    for (const auto& level : data.levels) {
      for (const auto& file : level.files) {
        files.push_back({path() / "db" / file.name.substr(1), level.level, file.num_deletions});
      }
    }
    return files;
  }

  // From here on no table file is merged with others, so that the files keep their names.
  void HoldMerges() {
    rocksdb::DB* const db = database()->rocksdb();
    for (int i = 0; i < kNumFamilies; ++i) {
      const auto family = database()->handle(static_cast<Family>(i));
      const auto status = db->SetOptions(family, {{"disable_auto_compactions", "true"}});
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    // Waits for a merge that has begun.
    ASSERT_TRUE(db->PauseBackgroundWork().ok());
    ASSERT_TRUE(db->ContinueBackgroundWork().ok());
  }

  // Commits one change of one key. Without a value it deletes the key.
  void Change(Family family, std::string key, const std::optional<std::string>& value) {
    CommitBatch batch;
    if (value.has_value()) {
      batch.Put(family, std::move(key), *value);
    } else {
      batch.Delete(family, std::move(key));
    }
    VARVE_ASSERT_OK(batch.Commit(database(), impl()->incoming(), {}));
  }

  void ExpectSound() {
    const auto check = store_->Check({.read_data = true});
    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_THAT(check->errors, ::testing::IsEmpty());
  }
};

// Returns the same weights after a small step. A delta of them is smaller than a keyframe.
inline TestTensor Drifted(TestTensor tensor, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < tensor.bytes.size(); at += 4) {
    tensor.bytes[at] ^= static_cast<std::byte>(random() & 7);
  }
  return tensor;
}

}  // namespace varve::internal::testing
