// SPDX-License-Identifier: Apache-2.0
#include "store/format/fixed_file.h"

#include "base/coding.h"
#include "base/digest.h"
#include "base/util.h"

namespace varve::internal {

namespace {

constexpr size_t kMaxBytes = 4096;
constexpr size_t kVersionAt = 8;  // behind the magic
constexpr size_t kFieldsAt = 16;

template <typename T>
T Load(std::string_view file, size_t at) {
  return LoadLittle<T>(AsBytes(file).data() + at);
}

uint64_t Checksum(std::string_view body) { return ComputeDigest(0, AsBytes(body)).lo; }

size_t NumBytes(size_t num_fields) { return kFieldsAt + 8 * num_fields + 8; }

// False: another length or checksum.
bool IsWhole(std::string_view file, size_t num_fields) {
  if (file.size() != NumBytes(num_fields)) return false;
  const size_t checksum_at = file.size() - 8;
  return Load<uint64_t>(file, checksum_at) == Checksum(file.substr(0, checksum_at));
}

// The version of a known file of which nothing but the version is damaged. 0: it is none.
uint32_t FindVersion(std::string_view file, uint32_t known_version, size_t num_fields) {
  for (uint32_t version = 1; version <= known_version; ++version) {
    std::byte bytes[sizeof(version)];
    StoreLittle(version, bytes);
    std::string mended(file);
    mended.replace(kVersionAt, sizeof(bytes), AsString(bytes));
    if (IsWhole(mended, num_fields)) return version;
  }
  return 0;
}

}  // namespace

std::string EncodeFixedFile(std::string_view magic, const FixedFile& file) {
  std::string bytes(magic);
  AppendLittle(file.version, &bytes);
  AppendLittle(static_cast<uint32_t>(NumBytes(file.fields.size())), &bytes);
  for (const uint64_t field : file.fields) AppendLittle(field, &bytes);
  AppendLittle(Checksum(bytes), &bytes);
  return bytes;
}

Result<FixedFile> ReadFixedFile(const std::filesystem::path& path, std::string_view magic,
                                uint32_t known_version, size_t num_fields) {
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, ReadSmallFile(path, kMaxBytes));
  return DecodeFixedFile(bytes, path, magic, known_version, num_fields);
}

Result<FixedFile> DecodeFixedFile(std::string_view bytes, const std::filesystem::path& path,
                                  std::string_view magic, uint32_t known_version,
                                  size_t num_fields) {
  if (bytes.size() < kFieldsAt || !bytes.starts_with(magic)) {
    return Status::Corruption(path.string() + ": not a varve " + path.filename().string() +
                              " file (bad magic)");
  }
  FixedFile file{.version = Load<uint32_t>(bytes, kVersionAt)};
  if (file.version > known_version) {
    const uint32_t version = FindVersion(bytes, known_version, num_fields);
    if (version == 0) return file;
    return Status::Corruption(path.string() + ": says version " + std::to_string(file.version) +
                              ", and its checksum is that of version " + std::to_string(version));
  }
  if (bytes.size() != NumBytes(num_fields)) {
    return Status::Corruption(path.string() + ": " + std::to_string(bytes.size()) +
                              " bytes, expected " + std::to_string(NumBytes(num_fields)));
  }
  if (!IsWhole(bytes, num_fields)) {
    return Status::Corruption(path.string() + ": checksum does not match");
  }
  for (size_t i = 0; i < num_fields; ++i) {
    file.fields.push_back(Load<uint64_t>(bytes, kFieldsAt + 8 * i));
  }
  return file;
}

}  // namespace varve::internal
