// SPDX-License-Identifier: Apache-2.0
//
// The common form of FORMAT and GROUP: a small file with a magic, a version, its own length, some
// 64-bit fields and a checksum. All integers are little-endian (docs/format.md). Stateless.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"

namespace varve::internal {

struct FixedFile {
  uint32_t version = 0;
  std::vector<uint64_t> fields;
};

// `magic` has 8 bytes.
std::string EncodeFixedFile(std::string_view magic, const FixedFile& file);

// Decodes the bytes of such a file. `path` names it in errors. A file of a version above
// `known_version` may have any length. Its fields are left out. kCorruption: another magic, length
// or checksum, or a known file whose version is damaged.
Result<FixedFile> DecodeFixedFile(std::string_view bytes, const std::filesystem::path& path,
                                  std::string_view magic, uint32_t known_version,
                                  size_t num_fields);
// Reads and decodes the file. kNotFound: there is no file.
Result<FixedFile> ReadFixedFile(const std::filesystem::path& path, std::string_view magic,
                                uint32_t known_version, size_t num_fields);

}  // namespace varve::internal
