// SPDX-License-Identifier: Apache-2.0
#include "store/format/format_file.h"

#include <vector>

#include "base/util.h"
#include "store/format/fixed_file.h"

namespace varve::internal {

namespace {

// docs/format.md, "FORMAT".
constexpr std::string_view kMagic = "varve\r\n\x1a";
constexpr size_t kNumFields = 7;  // the last is reserved

Status CheckFeatures(const FormatFile& format, const std::string& where, bool for_writing) {
  if (format.version > kFormatVersion) {
    return Status::FailedPrecondition(where + ": the store has format version " +
                                      std::to_string(format.version) +
                                      ", this varve knows versions up to " +
                                      std::to_string(kFormatVersion) + "; use a newer varve");
  }
  if ((format.incompatible & ~kIncompatibleFeatures) != 0) {
    return Status::FailedPrecondition(where +
                                      ": the store uses features that this varve does not "
                                      "know; use a newer varve");
  }
  if (for_writing && (format.read_compatible & ~kReadCompatibleFeatures) != 0) {
    return Status::FailedPrecondition(where +
                                      ": this varve can read the store but is too old to "
                                      "write it; use a newer varve");
  }
  return Status::Ok();
}

// A store has more than what a Create, a first backup or a first pull leaves that was cut short: a
// database that has been opened, or that a copy has published. A copy removes `staging` after that.
bool IsUsed(const std::filesystem::path& store) {
  std::error_code ignored;
  if (!std::filesystem::exists(store / "db" / "CURRENT", ignored)) return false;
  return std::filesystem::exists(store / "SYNCED", ignored) ||
         std::filesystem::exists(store / "spare" / kFormatFileName, ignored) ||
         (std::filesystem::exists(store / "BACKUP", ignored) &&
          !std::filesystem::exists(store / "staging", ignored));
}

}  // namespace

Status WriteFormatFile(const std::filesystem::path& store, const FormatFile& format) {
  const std::string file = EncodeFixedFile(
      kMagic, {format.version,
               {format.store_id.lo, format.store_id.hi, format.digest_seed, format.compatible,
                format.read_compatible, format.incompatible, 0}});
  return WriteFileAtomically(store / kFormatFileName, file);
}

Result<FormatFile> ReadFormatFile(const std::filesystem::path& store, bool for_writing) {
  const std::filesystem::path path = store / kFormatFileName;
  const Result<FixedFile> file = ReadFixedFile(path, kMagic, kFormatVersion, kNumFields);
  if (file.status().code() == StatusCode::kNotFound) {
    std::error_code ignored;
    if (!std::filesystem::exists(store, ignored)) {
      return Status::NotFound("no varve store in " + store.string() + ": there is no such folder");
    }
    if (IsUsed(store)) {
      return Status::Corruption(
          path.string() +
          " is missing, and db/ of a store is there: put the file back. It never changes, spare/ "
          "may have a copy, which varve repair takes, and every backup of the store has it");
    }
    return Status::NotFound("no varve store in " + store.string() + " (it has no FORMAT file)");
  }
  if (!file.ok()) return file.status();
  FormatFile format{.version = file->version};
  if (format.version <= kFormatVersion) {
    const std::vector<uint64_t>& fields = file->fields;
    format.store_id = {fields[0], fields[1]};
    format.digest_seed = fields[2];
    format.compatible = fields[3];
    format.read_compatible = fields[4];
    format.incompatible = fields[5];
  }
  VARVE_RETURN_IF_ERROR(CheckFeatures(format, path.string(), for_writing));
  return format;
}

}  // namespace varve::internal
