// SPDX-License-Identifier: Apache-2.0
//
// SYNCED and the copies in spare/ protect a store that reads well without them. A check names each
// that is missing or damaged, and the next writer makes it anew. A copy that shows that a file was
// exchanged is believed.
#include <fstream>

#include "base/util.h"
#include "store/db/current_copy.h"
#include "store/db/manifest_note.h"
#include "store/db/spare_files.h"
#include "tests/store/internals.h"
#include "varve/backup.h"
#include "varve/repair.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckSparesTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    SaveStep(1);
    SaveStep(2);
    Reopen();
    store_.reset();
  }
  void SaveStep(uint64_t step) {
    VARVE_ASSERT_OK(Save(step, {RandomTensor("t", DType::kU8, {1000}, step)}).status());
  }
  fs::path spare(const std::string& name) const { return SpareFolder(path()) / name; }
  std::string Manifest() const { return ReadCurrentCopy(path()).value(); }

  std::vector<std::string> Warnings() const {
    const CheckReport report = Store::OpenForReading(path()).value()->Check().value();
    EXPECT_THAT(report.errors, IsEmpty());
    return report.warnings;
  }
  void CutInHalf(const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); }
};

TEST_F(CheckSparesTest, EachThatIsMissingOrCutIsNamedUntilAWriterOpensTheStore) {
  EXPECT_THAT(Warnings(), IsEmpty());
  for (const bool is_removed : {true, false}) {
    for (const std::string name : {"SYNCED", "CURRENT", "FORMAT", "MANIFEST"}) {
      SCOPED_TRACE(name);
      const fs::path file = name == "SYNCED"     ? path() / kManifestNoteName
                            : name == "MANIFEST" ? spare(Manifest())
                                                 : spare(name);
      if (is_removed) {
        fs::remove(file);
      } else {
        CutInHalf(file);
      }
      EXPECT_THAT(Warnings(), ElementsAre(HasSubstr(file.string() + " ")));
      Reopen();
      EXPECT_THAT(store_->Check()->warnings, IsEmpty());
      store_.reset();
      EXPECT_THAT(Warnings(), IsEmpty());
    }
  }
}

TEST_F(CheckSparesTest, ACopyThatNoWriterHasOpenedHasBackup) {
  const fs::path copy = folder_.path() / "copy";
  VARVE_ASSERT_OK(BackUp(path(), copy, {}).status());
  const auto check = [&] { return Store::OpenForReading(copy).value()->Check().value(); };
  EXPECT_TRUE(check().ok());
  EXPECT_THAT(check().warnings, IsEmpty());
  CutInHalf(copy / "BACKUP");
  EXPECT_TRUE(check().ok());
  EXPECT_THAT(check().warnings, ElementsAre(HasSubstr((copy / "BACKUP").string() + " ")));
}

// Without the copy of CURRENT the store would read as it was then, and the next writer would delete
// the tables of step 3.
TEST_F(CheckSparesTest, AnOlderCurrentWithItsManifestIsDamage) {
  const fs::path old = folder_.path() / "old";
  fs::copy(path() / "db", old);
  const std::string old_manifest = Manifest();
  Reopen();
  SaveStep(3);
  store_.reset();
  const std::string manifest = Manifest();
  for (const auto& name : {std::string("CURRENT"), old_manifest}) {
    fs::copy(old / name, path() / "db" / name, fs::copy_options::overwrite_existing);
  }
  const auto fails = FailsWith(StatusCode::kCorruption,
                               "CURRENT names " + old_manifest + ", expected " + manifest);
  EXPECT_THAT(Store::Open(path()), fails);
  EXPECT_THAT(Store::OpenForReading(path()), fails);
  EXPECT_THAT(BackUp(path(), folder_.path() / "copy", {}), fails);
  // The manifest is in db/ still. Without it there is its copy.
  for (const bool is_there : {true, false}) {
    SCOPED_TRACE(is_there);
    if (!is_there) fs::remove(path() / "db" / manifest);
    const auto plan = RepairStore(path(), {.dry_run = true});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(plan->kept.size(), 3u);
  }
  VARVE_ASSERT_OK(RepairStore(path()).status());
  store_ = Store::Open(path()).value();
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 3u);
}

TEST_F(CheckSparesTest, ARepairRefusesWhenTheNewestManifestIsLost) {
  const std::string newest = "MANIFEST-999999", current = path() / "db" / "CURRENT",
                    own = Manifest();
  std::ofstream(current) << newest << "\n";
  CopyCurrent(path());
  std::ofstream(current) << own << "\n";
  EXPECT_THAT(RepairStore(path()), FailsWith(StatusCode::kCorruption, newest + " is lost"));
  fs::remove(spare("CURRENT"));  // as the message says
  Reopen();
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 2u);
}

TEST_F(CheckSparesTest, ACurrentIsFoundByItsCopy) {
  fs::remove(path() / "db" / "CURRENT");
  fs::remove(path() / kManifestNoteName);
  std::ofstream(path() / "db" / "MANIFEST-000001") << "an older one";
  VARVE_ASSERT_OK(RepairStore(path()).status());
  Reopen();
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 2u);
}

TEST_F(CheckSparesTest, AFormatOfAnotherStoreIsDamage) {
  const fs::path other = folder_.path() / "other";
  Store::Create(other).value().reset();
  const fs::path format = path() / "FORMAT", kept = folder_.path() / "kept";
  fs::rename(format, kept);
  fs::copy(other / "FORMAT", format);
  const auto fails =
      FailsWith(StatusCode::kCorruption, format.string() + " is of another store than ");
  EXPECT_THAT(Store::Open(path()), fails);
  EXPECT_THAT(Store::OpenForReading(path()), fails);
  EXPECT_TRUE(fs::exists(spare("FORMAT")));
  fs::rename(kept, format);
  Reopen();
  EXPECT_EQ(store_->ListCheckpoints("main")->size(), 2u);
}

}  // namespace
}  // namespace varve::internal::testing
