// SPDX-License-Identifier: Apache-2.0
//
// Reads the directory of a zip archive of unknown origin, as a pure function on bytes. It is
// stricter than the format asks: local headers must agree with the directory, entries must not
// overlap, and no name may occur twice. It knows zip64, and stored and deflated entries. It takes
// any part of a file, such as an archive in the middle of one. Stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/input_file.h"
#include "varve/result.h"

namespace varve::internal::formats {

struct ZipEntry {
  std::string name;
  bool is_deflated = false;
  uint32_t crc = 0;                 // of the contents, not checked yet
  bool has_crc = true;              // false: the writer put none there, and it is not checked
  uint64_t size = 0;                // of the contents
  std::span<const std::byte> data;  // in the archive. They are the contents unless deflated
};

// Returns true when the bytes start as an archive with entries does.
bool LooksLikeZip(std::span<const std::byte> start);

// Reads a whole archive. On success the entries have distinct names, in the order of their bytes.
// Their data lies in `archive`, without overlap. A stored entry has as many bytes as its contents,
// and a deflated one has enough for them. kInvalidArgument names the offset. If `fetch` is set, it
// is called before a part of the archive is read, but never for the data.
Result<std::vector<ZipEntry>> ParseZip(std::span<const std::byte> archive,
                                       const FetchBytes& fetch = {});

}  // namespace varve::internal::formats
