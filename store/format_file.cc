// SPDX-License-Identifier: Apache-2.0
#include "store/format_file.h"

#include <cstring>

#include "store/util.h"

namespace varve {
namespace {

// docs/format.md, "FORMAT". All integers little-endian.
constexpr char kMagic[8] = {'v', 'a', 'r', 'v', 'e', '\r', '\n', '\x1a'};
constexpr size_t kFileBytes = 80;
constexpr size_t kChecksumOffset = 72;

void PutLittle(char* at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = static_cast<char>(value >> (8 * i));
}

uint64_t GetLittle(const char* at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(at[i]);
  return value;
}

uint64_t Checksum(std::string_view file) {
  return ComputeDigest(0, AsBytes(file.substr(0, kChecksumOffset))).lo;
}

Status CheckFeatures(const FormatFile& format, const std::string& where, bool for_writing) {
  if (format.version > kFormatVersion) {
    return Status::FailedPrecondition(
        where + ": the store has format version " + std::to_string(format.version) +
        ", this varve knows versions up to " + std::to_string(kFormatVersion) +
        "; use a newer varve");
  }
  if (format.incompatible != 0) {
    return Status::FailedPrecondition(where + ": the store uses features that this varve does not "
                                              "know; use a newer varve");
  }
  if (for_writing && format.read_compatible != 0) {
    return Status::FailedPrecondition(where + ": this varve can read the store but is too old to "
                                              "write it; use a newer varve");
  }
  return Status::Ok();
}

}  // namespace

Status WriteFormatFile(const std::filesystem::path& store, const FormatFile& format) {
  std::string file(kFileBytes, '\0');
  std::memcpy(file.data(), kMagic, sizeof(kMagic));
  PutLittle(&file[8], format.version, 4);
  PutLittle(&file[12], kFileBytes, 4);
  PutLittle(&file[16], format.store_id.lo, 8);
  PutLittle(&file[24], format.store_id.hi, 8);
  PutLittle(&file[32], format.digest_seed, 8);
  PutLittle(&file[40], format.compatible, 8);
  PutLittle(&file[48], format.read_compatible, 8);
  PutLittle(&file[56], format.incompatible, 8);
  PutLittle(&file[kChecksumOffset], Checksum(file), 8);
  return WriteFileAtomically(store / kFormatFileName, file);
}

Result<FormatFile> ReadFormatFile(const std::filesystem::path& store, bool for_writing) {
  const std::string where = (store / kFormatFileName).string();
  Result<std::string> file = ReadSmallFile(where, 4096);
  if (!file.ok()) {
    if (file.status().code() != StatusCode::kNotFound) return file.status();
    return Status::NotFound("no varve store in " + store.string() + " (it has no FORMAT file)");
  }
  if (file->size() < 16 || std::memcmp(file->data(), kMagic, sizeof(kMagic)) != 0) {
    return Status::Corruption(where + ": not a varve FORMAT file (bad magic)");
  }
  FormatFile format;
  format.version = static_cast<uint32_t>(GetLittle(file->data() + 8, 4));
  // A later version may be longer, so its sentence comes before any check of size or checksum.
  if (format.version > kFormatVersion) return CheckFeatures(format, where, for_writing);
  if (file->size() != kFileBytes) {
    return Status::Corruption(where + ": " + std::to_string(file->size()) + " bytes, expected " +
                              std::to_string(kFileBytes));
  }
  if (GetLittle(file->data() + kChecksumOffset, 8) != Checksum(*file)) {
    return Status::Corruption(where + ": checksum does not match");
  }
  format.store_id = {GetLittle(file->data() + 16, 8), GetLittle(file->data() + 24, 8)};
  format.digest_seed = GetLittle(file->data() + 32, 8);
  format.compatible = GetLittle(file->data() + 40, 8);
  format.read_compatible = GetLittle(file->data() + 48, 8);
  format.incompatible = GetLittle(file->data() + 56, 8);
  VARVE_RETURN_IF_ERROR(CheckFeatures(format, where, for_writing));
  return format;
}

}  // namespace varve
