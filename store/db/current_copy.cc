// SPDX-License-Identifier: Apache-2.0
#include "store/db/current_copy.h"

#include "base/util.h"
#include "store/db/manifest_note.h"
#include "store/db/spare_files.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxBytes = 256;

fs::path CopyOf(const fs::path& store) { return SpareFolder(store) / "CURRENT"; }

// Empty: the file does not name a manifest, or is not there.
Result<std::string> ReadName(const fs::path& file) {
  Result<std::string> text = ReadSmallFile(file, kMaxBytes);
  if (IsShortage(text.status())) return text.status();
  if (!text.ok() || !text->ends_with('\n')) return std::string();
  text->pop_back();
  return IsManifestName(*text) ? *text : std::string();
}

}  // namespace

void CopyCurrent(const fs::path& store) {
  const fs::path current = store / "db" / "CURRENT";
  const Result<std::string> name = ReadName(current);
  RemoveSpare(current);  // a reader has the old copy or the new one
  if (name.ok() && !name->empty()) SpareFile(CopyOf(store)).Append(*name + "\n");
}

Result<std::string> ReadCurrentCopy(const fs::path& store) { return ReadName(CopyOf(store)); }

Status CheckCurrentIsNewest(const fs::path& store) {
  // The copy is read first. CURRENT was written before it.
  VARVE_ASSIGN_OR_RETURN(const std::string copy, ReadCurrentCopy(store));
  const fs::path current = store / "db" / "CURRENT";
  VARVE_ASSIGN_OR_RETURN(const std::string name, ReadName(current));
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
