// SPDX-License-Identifier: Apache-2.0
#include "store/db/current_copy.h"

#include "base/util.h"
#include "store/db/manifest_note.h"
#include "store/db/spare_files.h"
#include "store/format/fixed_file.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

// docs/format.md, "spare/CURRENT". With its checksum no flipped bit names a newer manifest.
constexpr std::string_view kMagic = "varvec\n\x1a";
constexpr uint32_t kVersion = 1;
constexpr size_t kNumFields = 1;  // number of the manifest

fs::path CopyOf(const fs::path& store) { return SpareFolder(store) / "CURRENT"; }

// Empty: CURRENT does not name a manifest, or is not there.
Result<std::string> ReadManifestInUse(const fs::path& store) {
  const Result<std::string> name = ReadCurrentName(store);
  if (IsShortage(name.status())) return name.status();
  return name.ok() && IsManifestName(*name) ? *name : std::string();
}

}  // namespace

void CopyCurrent(const fs::path& store) {
  const Result<std::string> name = ReadManifestInUse(store);
  RemoveSpare(store / "db" / "CURRENT");  // a reader has the old copy or the new one
  if (!name.ok() || name->empty()) return;
  SpareFile(CopyOf(store)).Append(EncodeFixedFile(kMagic, {kVersion, {ManifestNumber(*name)}}));
}

Result<std::string> ReadCurrentCopy(const fs::path& store) {
  const Result<FixedFile> copy = ReadFixedFile(CopyOf(store), kMagic, kVersion, kNumFields);
  if (IsShortage(copy.status())) return copy.status();
  if (!copy.ok() || copy->fields.size() != kNumFields) return std::string();
  return ManifestName(copy->fields[0]);
}

Status CheckCurrentIsNewest(const fs::path& store) {
  // The copy is read first. CURRENT was written before it.
  VARVE_ASSIGN_OR_RETURN(const std::string copy, ReadCurrentCopy(store));
  const fs::path current = store / "db" / "CURRENT";
  VARVE_ASSIGN_OR_RETURN(const std::string name, ReadManifestInUse(store));
  if (copy.empty() || name.empty() || ManifestNumber(copy) <= ManifestNumber(name)) {
    return Status::Ok();
  }
  return Status::Corruption(current.string() + " names " + name + ", expected " + copy +
                            " as in its copy " + CopyOf(store).string() +
                            ": it is of an earlier time, and the newest changes of the store are "
                            "not in it. varve repair goes by " +
                            copy + ". To go on with the older state, remove the copy");
}

}  // namespace varve::internal
