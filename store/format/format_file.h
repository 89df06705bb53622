// SPDX-License-Identifier: Apache-2.0
//
// FORMAT, the plain file beside the database that says what the folder is. It is read before
// anything else is opened. Create writes it last, because a folder with this file is a store.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/digest.h"
#include "varve/result.h"

namespace varve::internal {

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr std::string_view kFormatFileName = "FORMAT";

// Features that a program must know to use the store.
inline constexpr uint64_t kRansFeature = 1;    // frames may have version 2 and hold rANS streams
inline constexpr uint64_t kReplayFeature = 2;  // frames may have version 3: replays of a step
inline constexpr uint64_t kIncompatibleFeatures = kRansFeature | kReplayFeature;
// Features that a program must know to write to the store.
inline constexpr uint64_t kSealedFeature = 1;  // the manifest and all tables have tags (sealer.h)
inline constexpr uint64_t kReadCompatibleFeatures = kSealedFeature;

struct FormatFile {
  uint32_t version = kFormatVersion;
  Digest store_id;  // random
  uint64_t digest_seed = 0;
  // Features that a program must know to use the store. Unknown compatible bits are ignored.
  // Unknown read-compatible bits forbid writing. Unknown incompatible bits forbid opening.
  uint64_t compatible = 0;
  uint64_t read_compatible = 0;
  uint64_t incompatible = 0;

  bool is_sealed() const { return (read_compatible & kSealedFeature) != 0; }
  bool operator==(const FormatFile&) const = default;
};

// The file is durable when this returns.
Status WriteFormatFile(const std::filesystem::path& store, const FormatFile& format);

// kNotFound: there is no store in that folder. kFailedPrecondition: a newer varve made it, and this
// one cannot use it as wanted. kCorruption: it is damaged or not a FORMAT file.
Result<FormatFile> ReadFormatFile(const std::filesystem::path& store, bool for_writing);

}  // namespace varve::internal
