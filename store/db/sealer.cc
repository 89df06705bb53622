// SPDX-License-Identifier: Apache-2.0
#include "store/db/sealer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/coding.h"
#include "base/file_descriptor.h"
#include "base/stop.h"
#include "base/util.h"

namespace varve::internal {

namespace {

constexpr size_t kNonceBytes = 16;
constexpr size_t kReadBytes = size_t{1} << 20;
constexpr char kDerivation[crypto_kdf_CONTEXTBYTES + 1] = "varveSea";
constexpr std::string_view kMasterKeyLabel = "varve sealed store, version 1";
constexpr const char* kTableTagName = "varve.table_tag.1";
enum Use : uint64_t { kManifests = 1, kTables = 2, kKeyId = 3 };

static_assert(crypto_kdf_KEYBYTES == sizeof(SealKey));
static_assert(crypto_onetimeauth_KEYBYTES == sizeof(SealKey));

const unsigned char* Raw(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// BLAKE2b-256 of `bytes` under `key`.
SealKey Hash(std::string_view bytes, const unsigned char* key, size_t key_bytes) {
  SealKey hash;
  crypto_generichash_blake2b(hash.data(), hash.size(), Raw(bytes), bytes.size(), key, key_bytes);
  return hash;
}

SealKey Derive(const SealKey& master, Use use) {
  SealKey key;
  crypto_kdf_derive_from_key(key.data(), key.size(), use, kDerivation, master.data());
  return key;
}

// The tag of a table file, as RocksDB writes the file, or as it is read again.
class TableTag : public rocksdb::FileChecksumGenerator {
 public:
  TableTag(const SealKey& key, std::string nonce) : tag_(std::move(nonce)) {
    const SealKey once = Hash(tag_, key.data(), key.size());
    crypto_onetimeauth_init(&state_, once.data());
  }
  void Update(const char* data, size_t size) override {
    crypto_onetimeauth_update(&state_, reinterpret_cast<const unsigned char*>(data), size);
  }
  void Finalize() override {
    unsigned char mac[crypto_onetimeauth_BYTES];
    crypto_onetimeauth_final(&state_, mac);
    tag_.append(reinterpret_cast<const char*>(mac), sizeof(mac));
  }
  std::string GetChecksum() const override { return tag_; }
  const char* Name() const override { return kTableTagName; }

 private:
  crypto_onetimeauth_state state_;
  std::string tag_;  // the nonce, and after Finalize the Poly1305
};

class TableTags : public rocksdb::FileChecksumGenFactory {
 public:
  explicit TableTags(const SealKey& key) : key_(key) {}
  const char* Name() const override { return kTableTagName; }
  std::unique_ptr<rocksdb::FileChecksumGenerator> CreateFileChecksumGenerator(
      const rocksdb::FileChecksumGenContext&) override {
    std::string nonce(kNonceBytes, '\0');
    randombytes_buf(nonce.data(), nonce.size());
    return std::make_unique<TableTag>(key_, std::move(nonce));
  }

 private:
  const SealKey key_;
};

}  // namespace

Status CheckKeySize(std::string_view key) {
  if (key.size() >= kMinKeyBytes && key.size() <= kMaxKeyBytes) return Status::Ok();
  const std::string found = key.size() > kMaxKeyBytes ? "more than " + std::to_string(kMaxKeyBytes)
                                                      : std::to_string(key.size());
  return Status::InvalidArgument("the key of a sealed store has " + found + " bytes, expected " +
                                 std::to_string(kMinKeyBytes) + " to " +
                                 std::to_string(kMaxKeyBytes));
}

ManifestTag::ManifestTag(const SealKey& key, const FormatFile& format) {
  crypto_generichash_blake2b_init(&state_, key.data(), key.size(), key.size());
  for (const uint64_t field : {format.store_id.lo, format.store_id.hi, format.digest_seed}) {
    std::byte bytes[sizeof(field)];
    StoreLittle(field, bytes);
    Add(AsString(bytes));
  }
}

void ManifestTag::Add(std::string_view bytes) {
  crypto_generichash_blake2b_update(&state_, Raw(bytes), bytes.size());
}

std::string ManifestTag::Get() const {
  crypto_generichash_blake2b_state state = state_;
  std::string tag(sizeof(SealKey), '\0');
  crypto_generichash_blake2b_final(&state, reinterpret_cast<unsigned char*>(tag.data()),
                                   tag.size());
  return tag;
}

Result<std::shared_ptr<const Sealer>> Sealer::Make(std::string_view key, const FormatFile& format) {
  if (::sodium_init() < 0) return Status::Unavailable("libsodium finds no random numbers");
  VARVE_RETURN_IF_ERROR(CheckKeySize(key));
  SealKey master = Hash(key, Raw(kMasterKeyLabel), kMasterKeyLabel.size());
  const std::shared_ptr<Sealer> sealer(new Sealer(format));
  sealer->manifest_key_ = Derive(master, kManifests);
  sealer->table_key_ = Derive(master, kTables);
  const SealKey id = Derive(master, kKeyId);
  std::memcpy(&sealer->key_id_, id.data(), sizeof(sealer->key_id_));
  ::sodium_memzero(master.data(), master.size());
  return std::shared_ptr<const Sealer>(sealer);
}

Sealer::~Sealer() {
  ::sodium_memzero(manifest_key_.data(), manifest_key_.size());
  ::sodium_memzero(table_key_.data(), table_key_.size());
}

std::shared_ptr<rocksdb::FileChecksumGenFactory> Sealer::TagsOfTables() const {
  return std::make_shared<TableTags>(table_key_);
}

Status Sealer::CompareTable(const std::filesystem::path& file, std::string_view tag) const {
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor fd, OpenFileToRead(file));
  return CompareTable(file, tag, [&](uint64_t offset, std::span<char> out) -> Result<size_t> {
    while (true) {
      const ssize_t size = ::pread(fd.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (size >= 0) return static_cast<size_t>(size);
      if (errno != EINTR) return ErrnoStatus("read", file, errno);
    }
  });
}

Status Sealer::CompareTable(const std::filesystem::path& file, std::string_view tag,
                            const ReadAt& read) const {
  if (tag.size() != kNonceBytes + crypto_onetimeauth_BYTES) {
    return Status::Corruption("table file " + file.string() +
                              " has no tag: it was not written with the store's key");
  }
  const StopFlag stop;
  TableTag found(table_key_, std::string(tag.substr(0, kNonceBytes)));
  std::vector<char> block(kReadBytes);
  for (uint64_t offset = 0;;) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    VARVE_ASSIGN_OR_RETURN(const size_t size, read(offset, block));
    if (size == 0) break;
    found.Update(block.data(), size);
    offset += size;
  }
  found.Finalize();
  const std::string actual = found.GetChecksum();
  if (::sodium_memcmp(actual.data(), tag.data(), tag.size()) == 0) return Status::Ok();
  return Status::Corruption("table file " + file.string() +
                            " does not have its tag: it was changed without the store's key");
}

}  // namespace varve::internal
