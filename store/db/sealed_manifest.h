// SPDX-License-Identifier: Apache-2.0
//
// The seal of a manifest: a file seal/MANIFEST-000012 of a sealed store. It says how long the
// manifest is, and the tag of its bytes (sealer.h). The manifest has the tags of all table files,
// so its seal covers the whole state of the store.
//
// The writer holds back what RocksDB appends to a manifest until RocksDB syncs it. Then the seal of
// the longer manifest is written and synced, and after that the bytes. So a manifest never has a
// record that no seal covers. A seal has two slots, which take turns: after a power cut between the
// two writes, the other slot has the seal of the manifest as it was.
//
// Thread rule: a SealedManifest belongs to one thread at a time. Functions from any thread.
#pragma once

#include <rocksdb/file_system.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.h"
#include "store/db/sealer.h"
#include "varve/result.h"

namespace varve::internal {

// The folder of the seals.
std::filesystem::path SealFolder(const std::filesystem::path& store);
// `manifest` lies in db/ of a store.
std::filesystem::path SealOfManifest(const std::filesystem::path& manifest);
void RemoveSealOfManifest(const std::filesystem::path& manifest);
// Removes the seals of manifests that are gone. It follows no links.
void RemoveUnusedSeals(const std::filesystem::path& store);

struct Seal {
  uint64_t key_id = 0;
  uint64_t bytes = 0;  // of the manifest
  std::string tag;
};
// Reads what is whole of the two slots. kNotFound: there is no such file.
Result<std::vector<Seal>> ReadSeals(const std::filesystem::path& file);

// A file of seals that is being written.
class SealFile {
 public:
  explicit SealFile(std::filesystem::path path) : path_(std::move(path)) {}

  // The seal is durable when this returns, and the one before it is still there.
  Status Write(const Seal& seal);

 private:
  Status Make();

  const std::filesystem::path path_;
  std::optional<FileDescriptor> file_;
  uint64_t num_written_ = 0;
};

// The manifest of a sealed store that is being written.
class SealedManifest : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  SealedManifest(std::shared_ptr<const Sealer> sealer, const std::filesystem::path& manifest,
                 std::unique_ptr<rocksdb::FSWritableFile> target);

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           const rocksdb::DataVerificationInfo& verification,
                           rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus Flush(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                         rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* debug) override;
  uint64_t GetFileSize(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override;

 private:
  // Seals the longer manifest, and passes on what was held back, change by change.
  rocksdb::IOStatus PassOn(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug);
  rocksdb::IOStatus PassOnPart(std::string_view part, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug);

  const std::shared_ptr<const Sealer> sealer_;
  SealFile seal_;
  ManifestTag tag_;     // of all bytes, held back or not
  std::string held_;    // not yet in the file
  uint64_t bytes_ = 0;  // in the file
};

// The manifest of a store as far as its seal covers it.
struct SealedState {
  std::filesystem::path manifest;
  uint64_t file_bytes = 0;  // of the whole file
  std::string log;  // may be shorter than the file after a power cut, or while a writer appends
};
// kCorruption: there is no seal, or somebody without the key has changed the manifest. It may
// look like that for a moment while a writer is at work. kFailedPrecondition: it was sealed with
// another key.
Result<SealedState> ReadSealedState(const std::filesystem::path& store, const Sealer& sealer);
// The same for the only writer. It cuts off what a power cut has left behind the sealed part, and
// removes the seals of manifests that are gone.
Result<SealedState> PrepareSealedState(const std::filesystem::path& store, const Sealer& sealer);
// Cuts off what a power cut has left behind the last whole change. Returns the size that is left.
Result<uint64_t> CutTornEnd(const std::filesystem::path& manifest);
// The error of a manifest that VisitManifestStates does not understand.
Status UnknownRecord(const std::filesystem::path& manifest);
// Logs of RocksDB that are not empty. Varve writes none, and RocksDB would show readers what
// somebody else has written to one. Each text names a log, and says so. kIOError: db/ cannot be
// listed.
Result<std::vector<std::string>> FindForeignLogs(const std::filesystem::path& store);
// The whole records of a store's manifest, whatever its seal says.
Result<SealedState> ReadUnsealedState(const std::filesystem::path& store);
// Makes the seal of a state. The caller holds the lock of the store, and trusts the state.
Status SealManifest(const SealedState& state, const Sealer& sealer);

}  // namespace varve::internal
