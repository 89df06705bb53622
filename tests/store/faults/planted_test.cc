// SPDX-License-Identifier: Apache-2.0
//
// Mistakes in how a program takes the errors of calls. They are planted below it: the call fails,
// and the program is told that it was done. The sweep must find each of them.
#include <cerrno>
#include <filesystem>

#include "tests/store/faults/store_faults.h"

namespace varve::internal::testing {
namespace {

class PlantedFaultsTest : public FaultsTest {
 protected:
  Scenario Save() {
    return OfStore([this] { return SaveStep(4, 4); },
                   [](State* state) {
                     state->Put({"main", 4}, ContentOfStep(4));
                   });
  }
};

TEST_F(PlantedFaultsTest, InTheManifestAreFound) {
  MakeTemplate();
  const std::string manifest = "/db/MANIFEST-";
  ExpectFound(Save(), "an error of a write of the manifest is swallowed",
              {.path = manifest, .call = "writes", .error = EIO});
  ExpectFound(Save(), "a short write of the manifest is taken for whole",
              {.path = manifest, .call = "writes", .short_write = true});
  ExpectFound(Save(), "a failed sync of the manifest is taken for done",
              {.path = manifest, .call = "syncs", .error = EIO, .lose = true});
}

TEST_F(PlantedFaultsTest, InFormatAreFound) {
  before_ = {};
  Scenario create = OfStore(
      [&]() -> Status {
        store_.reset();
        VARVE_ASSIGN_OR_RETURN(store_, Store::Create(path(), {.digest_seed = 1}));
        return Status::Ok();
      },
      [](State* state) { state->exists = true; });
  create.start = [this] { RemoveRound(); };
  ExpectFound(create, "a short write of FORMAT is taken for whole",
              {.path = "/store/FORMAT", .call = "writes", .short_write = true});
  ExpectFound(create, "a failed sync of FORMAT is taken for done",
              {.path = "/store/FORMAT", .call = "syncs", .error = EIO, .lose = true});
}

TEST_F(PlantedFaultsTest, InSealsAreFound) {
  closing_options_.key = std::string(32, 'k');
  MakeTemplate();
  ExpectFound(Save(), "an error of a write of a seal is swallowed",
              {.path = "/seal/", .call = "writes", .error = EIO});
  ExpectFound(Save(), "a failed sync of a seal is taken for done",
              {.path = "/seal/", .call = "syncs", .error = EIO, .lose = true});
}

// RocksDB reads a table file after it was synced and before the manifest names it.
TEST_F(PlantedFaultsTest, InTablesAreFoundByTheCommit) {
  MakeTemplate();
  for (const std::string file : {"/incoming/birth-", "/incoming/commit-"}) {
    ExpectHarmless(Save(), "an error of a write of " + file + " is swallowed",
                   {.path = file, .call = "writes", .error = EIO});
    ExpectHarmless(Save(), "a short write of " + file + " is taken for whole",
                   {.path = file, .call = "writes", .short_write = true});
    ExpectHarmless(Save(), "a failed sync of " + file + " is taken for done",
                   {.path = file, .call = "syncs", .error = EIO, .lose = true});
  }
  ExpectHarmless(Save(), "a failed link is taken for done", {.call = "link", .error = EIO});
}

// A save that fails breaks the store on the disk. The next call mends it before it saves, so the
// open store never sees the damage.
TEST_F(PlantedFaultsTest, WhatARetryMendsIsFound) {
  MakeTemplate();
  StartFromTemplate();
  const std::filesystem::path current = path() / "db/CURRENT", aside = path() / "aside";
  const Operation save = [&]() -> Status {
    if (std::filesystem::exists(current)) {
      std::filesystem::rename(current, aside);
      return Status::IOError("planted");
    }
    std::filesystem::rename(aside, current);
    return SaveStep(4, 4);
  };
  State after = before_;
  after.Put({"main", 4}, ContentOfStep(4));
  const std::string fault = JudgeOperation(save, save(), before_, after);
  EXPECT_THAT(fault, ::testing::StartsWith("reading a copy: "));
}

}  // namespace
}  // namespace varve::internal::testing
