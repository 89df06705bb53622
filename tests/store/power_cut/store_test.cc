// SPDX-License-Identifier: Apache-2.0
//
// Power cuts during the operations of one store and of its backup.
#include "tests/store/power_cut/driver.h"
#include "tests/store/power_cut/judge.h"
#include "tests/store/save/trained_steps.h"
#include "varve/backup.h"
#include "varve/request.h"

// GCC 12 sees the strings of a variant's other members being destroyed (its bug 105562).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

// The operations of the workload, each of which is recorded.
class StoreWorkload {
 public:
  // With a key the store is sealed.
  StoreWorkload(const fs::path& root, std::string key)
      : path_(root / "store"), copy_(root / "copy"), key_(std::move(key)), recorder_(root) {}

  Recorded Run(const fs::path& image) {
    Create();
    Save({"main", 1}, 1);
    Save({"main", 2}, 2);
    Tag({"main", 1}, "first");
    Save({"main", 3}, 3);
    Save({"main", 3}, 4, OnExisting::kReplace);
    Fork();
    Save({"other", 5}, 5);
    RequestTag({"main", 3}, "good");
    Tag({"main", 1}, "good");
    RequestDrop({"main", 2});
    Save({"main", 2}, 6);
    BackUpStore();
    Save({"main", 4}, 7);
    Rewind();
    Drop({{"main", 2}, {"other", 5}}, /*reclaim=*/false);
    for (const size_t i : {0, 1, 2, 3, 4}) SaveTrained(i);
    // What the later steps are predicted from outlives these.
    Drop({trained_.IdOf(0), trained_.IdOf(1), trained_.IdOf(2)}, /*reclaim=*/false);
    recorder_.Run("reclaim", [&] { return store_->Reclaim({.all = true}).status(); });
    ReplaceTrained(4);
    SaveTrained(5);
    for (uint64_t step = 10; step < 16; ++step) Save({"main", step}, step);
    BackUpStore();
    OpenAgain();
    Save({"main", 20}, 20);
    Drop({{"main", 10}, {"main", 11}, {"main", 13}}, /*reclaim=*/true);
    Save({"main", 21}, 21);
    SaveTrained(6);
    Drop({trained_.IdOf(3), trained_.IdOf(4), trained_.IdOf(5)}, /*reclaim=*/true);
    EXPECT_TRUE(HasReplays(*store_).value());
    store_.reset();
    return recorder_.Finish(image);
  }

 private:
  State& now() { return recorder_.now; }

  void Create() {
    recorder_.Run(
        "create",
        [&]() -> Status {
          VARVE_ASSIGN_OR_RETURN(store_,
                                 Store::Create(path_, {.digest_seed = 1, .store = {.key = key_}}));
          return Status::Ok();
        },
        [&] { now().exists = true; });
  }
  void OpenAgain() {
    recorder_.Run("open again", [&]() -> Status {
      store_.reset();
      VARVE_ASSIGN_OR_RETURN(store_, Store::Open(path_, {.key = key_}));
      return Status::Ok();
    });
  }
  void Save(const CheckpointId& id, uint64_t content, OnExisting on_existing = OnExisting::kError) {
    recorder_.Run(
        "save " + std::to_string(id.step),
        [&] { return SaveContentOf(store_.get(), id, content, on_existing); },
        [&] { now().Put(id, ContentOfStep(content)); });
  }
  void SaveTrained(size_t i) {
    recorder_.Run(
        "save trained " + std::to_string(i), [&] { return trained_.Save(store_.get(), i); },
        [&] { now().Put(trained_.IdOf(i), trained_.TensorsOf(i)); });
  }
  void ReplaceTrained(size_t i) {
    recorder_.Run(
        "replace trained " + std::to_string(i), [&] { return trained_.Replace(store_.get(), i); },
        [&] { now().Put(trained_.IdOf(i), trained_.OtherTensorsOf(i)); });
  }
  void Tag(const CheckpointId& id, const std::string& tag) {
    recorder_.Run(
        "tag", [&] { return store_->SetTag(id, tag); },
        [&] {
          now().tags[{id.run, tag}] = id.step;
        });
  }
  void RequestTag(const CheckpointId& id, const std::string& tag) {
    recorder_.Run(
        "request a tag",
        [&] {
          return Submit(path_, SetTagRequest{id, tag}, {.key = key_}).status();
        },
        [&] {
          now().tags[{id.run, tag}] = id.step;
        });
  }
  void RequestDrop(const CheckpointId& id) {
    recorder_.Run(
        "request a drop", [&] { return Submit(path_, DropRequest{{id}}, {.key = key_}).status(); },
        [&] {
          now().steps.erase({id.run, id.step});
        });
  }
  void Fork() {
    recorder_.Run(
        "fork", [&] { return store_->Fork("main", "other", 2).status(); },
        [&] {
          now().steps[{"other", 2}] = now().steps[{"main", 2}];
        });
  }
  void Rewind() {
    recorder_.Run(
        "rewind", [&] { return store_->Rewind("main", 3).status(); },
        [&] {
          now().steps[{"main~1", 4}] = now().steps[{"main", 4}];  // where a rewind puts it
          now().steps.erase({"main", 4});
        });
  }
  void Drop(const std::vector<CheckpointId>& ids, bool reclaim) {
    recorder_.Run(
        "drop", [&] { return store_->Drop(ids, {.reclaim = reclaim}).status(); },
        [&] {
          for (const CheckpointId& id : ids) now().steps.erase({id.run, id.step});
        });
  }
  void BackUpStore() {
    recorder_.Run(
        "backup", [&] { return BackUp(path_, copy_).status(); }, [&] { recorder_.backup = now(); });
  }

  const fs::path path_, copy_;
  const std::string key_;
  const TrainedSteps trained_{1000, 7};
  Recorder recorder_;
  std::unique_ptr<Store> store_;
};

class StorePowerCutTest : public PowerCutTest {
 protected:
  void SetUp() override { Record<StoreWorkload>(key_); }

  std::string JudgeBoth(const fs::path& folder, const Moment& moment) const {
    std::string fault =
        JudgeStore(folder / "store", AllowedStates(recorded_.states, moment), moment.seed, key_);
    if (!fault.empty()) return fault;
    const std::vector<State> copies = AllowedStates(recorded_.copies, moment);
    if (!copies.back().exists) return "";
    const auto copy = Store::OpenForReading(folder / "copy", {.key = key_});
    if (copy.ok()) {
      fault = CheckState(**copy, copies);
      if (fault.empty()) fault = CheckClean(**copy);
      if (!fault.empty()) return "backup: " + fault;
    } else if (copies.front().exists) {
      return "backup: " + copy.status().ToString();
    }
    const bool is_backup = moment.has_begun && !Equal(copies.front(), copies.back());
    if (!is_backup && moment.seed % 8 != 0) return "";
    const auto again = BackUp(folder / "store", folder / "copy");
    return again.ok() ? "" : "a backup after it: " + again.status().ToString();
  }

  Judge judge() {
    return
        [this](const fs::path& folder, const Moment& moment) { return JudgeBoth(folder, moment); };
  }

  std::string key_;
};

class SealedStorePowerCutTest : public StorePowerCutTest {
 protected:
  void SetUp() override {
    key_ = std::string(32, 'k');
    StorePowerCutTest::SetUp();
  }
};

TEST_F(StorePowerCutTest, NothingIsLost) { ExpectNoFaults(recorded_, judge(), 29); }

TEST_F(StorePowerCutTest, PlantedMistakesAreFound) {
  const auto find = [&](const std::string& mistake, const Plant& plant) {
    ExpectFound(recorded_, judge(), mistake, plant);
  };
  const Chosen records = Path("store/incoming/commit-"), frames = Path("store/incoming/birth-");
  find("records of a commit are not synced", WithoutSyncs(records));
  find("frames are not synced", WithoutSyncs(frames));
  find("records are synced after the manifest names them", LateSyncs(records));
  find("frames are synced after the manifest names them", LateSyncs(frames));
  find("names of tables are synced after the manifest names them", LateSyncs(Folder("store/db")));
}

TEST_F(StorePowerCutTest, PlantedMistakesOfMakingAStoreAreFound) {
  const auto find = [&](const std::string& mistake, const Plant& plant) {
    ExpectFound(recorded_, judge(), mistake, Only(recorded_, "create", plant));
  };
  const Chosen format = Path("store/FORMAT");
  find("the first manifest is not synced", WithoutSyncs(Path("store/db/MANIFEST-")));
  find("the folder of the new database is not synced", WithoutSyncs(Folder("store/db")));
  find("FORMAT is not synced", WithoutSyncs(format));
  find("FORMAT is synced after it has its name", LateSyncs(format));
  find("the name of FORMAT is not synced", WithoutSyncs(Folder("store")));
  find("the name of the store is not synced", WithoutSyncs(Folder("")));
}

TEST_F(StorePowerCutTest, PlantedMistakesOfTheManifestAreFound) {
  const Chosen manifest = Path("store/db/MANIFEST-");
  ExpectFound(recorded_, judge(), "the manifest is not synced",
              Except(recorded_, "create", WithoutSyncs(manifest)));
  for (const std::string operation : {"reclaim", "drop"}) {
    ExpectFound(recorded_, judge(), "files are removed before the manifest is synced: " + operation,
                Only(recorded_, operation, LateSyncs(manifest)));
  }
  ExpectFound(recorded_, judge(), "what a reclaim has rewritten is not synced",
              Only(recorded_, "reclaim", WithoutSyncs(Path("store/db/0"))));
}

TEST_F(StorePowerCutTest, PlantedMistakesOfBackupsAreFound) {
  const auto find = [&](const std::string& mistake, const Plant& plant) {
    ExpectFound(recorded_, judge(), mistake, plant);
  };
  find("BACKUP is not synced", WithoutSyncs(Path("copy/BACKUP")));
  find("tables of a backup are not synced", WithoutSyncs(Path("copy/db/0")));
  find("the manifest of a backup is not synced", WithoutSyncs(Path("copy/db/MANIFEST-")));
  find("CURRENT of a backup is not synced", WithoutSyncs(Path("copy/db/CURRENT")));
  find("FORMAT of a backup is not synced", WithoutSyncs(Path("copy/FORMAT")));
  find("names in a backup are not synced", WithoutSyncs(Folder("copy")));
  find("names in the database of a backup are not synced", WithoutSyncs(Folder("copy/db")));
}

TEST_F(SealedStorePowerCutTest, NothingIsLost) { ExpectNoFaults(recorded_, judge(), 61); }

TEST_F(SealedStorePowerCutTest, PlantedMistakesAreFound) {
  const Chosen seals = Path("store/seal/");
  ExpectFound(recorded_, judge(), "seals are not synced", WithoutSyncs(seals));
  ExpectFound(recorded_, judge(), "seals are synced after the manifest", LateSyncs(seals));
}

}  // namespace
}  // namespace varve::internal::testing
