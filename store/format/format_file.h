// SPDX-License-Identifier: Apache-2.0
//
// FORMAT, the plain file beside the database that says what the folder is. It is read before
// anything else is opened, and its presence is what makes a folder a store: Create writes it last.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/digest.h"
#include "varve/result.h"

namespace varve {

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr std::string_view kFormatFileName = "FORMAT";

struct FormatFile {
  uint32_t version = kFormatVersion;
  Digest store_id;  // random
  uint64_t digest_seed = 0;
  // Features that a program must know to use the store: unknown compatible bits are ignored,
  // unknown read-compatible bits forbid writing, unknown incompatible bits forbid opening.
  uint64_t compatible = 0;
  uint64_t read_compatible = 0;
  uint64_t incompatible = 0;
};

// Durable when it returns.
Status WriteFormatFile(const std::filesystem::path& store, const FormatFile& format);

// kNotFound: there is no store in that folder. kFailedPrecondition: made by a newer varve, for the
// wanted use. kCorruption: not a FORMAT file, or damaged.
Result<FormatFile> ReadFormatFile(const std::filesystem::path& store, bool for_writing);

}  // namespace varve
