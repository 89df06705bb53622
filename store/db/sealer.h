// SPDX-License-Identifier: Apache-2.0
//
// The tags of a sealed store (docs/security.md). Nobody can compute them without the store's key.
//
// Keys: a master key is derived from the user's key by BLAKE2b, and one key for each use from the
// master key (crypto_kdf of libsodium).
// A manifest's tag is a keyed BLAKE2b-256 of the store's id, its digest seed, and the bytes.
// A table's tag is a random nonce of 16 bytes, and the Poly1305 of the bytes under a key that a
// keyed BLAKE2b-256 makes of the nonce. So no key of Poly1305 is ever used twice.
// RocksDB keeps the tags of tables in its manifest, as checksums of files. So the tag of the
// manifest covers them, too.
//
// Thread rule: a Sealer from any thread. One thread at a time for a ManifestTag.
#pragma once

#include <rocksdb/file_checksum.h>
#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "store/format/format_file.h"
#include "varve/result.h"

namespace varve::internal {

inline constexpr size_t kMinKeyBytes = 16, kMaxKeyBytes = 1024;
// kInvalidArgument: a key of the user has fewer or more bytes.
Status CheckKeySize(std::string_view key);

using SealKey = std::array<unsigned char, 32>;

// The tag of the bytes of a manifest that were added so far.
class ManifestTag {
 public:
  ManifestTag(const SealKey& key, const FormatFile& format);
  void Add(std::string_view bytes);
  std::string Get() const;  // 32 bytes

 private:
  crypto_generichash_blake2b_state state_;
};

class Sealer {
 public:
  // kInvalidArgument: the key has fewer than 16 or more than 1,024 bytes.
  static Result<std::shared_ptr<const Sealer>> Make(std::string_view key, const FormatFile& format);
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;
  ~Sealer();

  // Tells keys apart, and says nothing about the key.
  uint64_t key_id() const { return key_id_; }
  ManifestTag BeginManifest() const { return {manifest_key_, format_}; }
  // Gives each table file that RocksDB writes a tag.
  std::shared_ptr<rocksdb::FileChecksumGenFactory> TagsOfTables() const;
  // Reads a table file whole. kCorruption: the file has another tag. kNotFound: it is missing.
  Status CompareTable(const std::filesystem::path& file, std::string_view tag) const;
  // The same through `read`, which returns how many bytes it has put into `out`. 0 = the file ends.
  using ReadAt = std::function<Result<size_t>(uint64_t offset, std::span<char> out)>;
  Status CompareTable(const std::filesystem::path& file, std::string_view tag,
                      const ReadAt& read) const;

 private:
  explicit Sealer(const FormatFile& format) : format_(format) {}

  const FormatFile format_;
  SealKey manifest_key_{}, table_key_{};
  uint64_t key_id_ = 0;
};

}  // namespace varve::internal
