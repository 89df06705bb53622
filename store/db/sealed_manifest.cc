// SPDX-License-Identifier: Apache-2.0
#include "store/db/sealed_manifest.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/coding.h"
#include "base/digest.h"
#include "base/util.h"
#include "store/db/manifest_log.h"
#include "store/db/manifest_note.h"
#include "store/db/manifest_tables.h"
#include "store/format/fixed_file.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

// docs/format.md, "seal".
constexpr std::string_view kMagic = "varveS\n\x1a";
constexpr uint32_t kVersion = 1;
constexpr size_t kNumFields = 6;  // id of the key, bytes, and the tag
constexpr size_t kNumSlots = 2;
constexpr size_t kSlotBytes = 512;  // a disk writes a sector whole or not at all

std::string EncodeSeal(const Seal& seal) {
  FixedFile file{.version = kVersion, .fields = {seal.key_id, seal.bytes}};
  for (size_t at = 0; at < seal.tag.size(); at += 8) {
    file.fields.push_back(LoadLittle<uint64_t>(AsBytes(seal.tag).data() + at));
  }
  return EncodeFixedFile(kMagic, file);
}

Seal ToSeal(const FixedFile& file) {
  Seal seal{.key_id = file.fields[0], .bytes = file.fields[1]};
  for (size_t i = 2; i < file.fields.size(); ++i) {
    std::byte bytes[8];
    StoreLittle(file.fields[i], bytes);
    seal.tag += AsString(bytes);
  }
  return seal;
}

Result<std::string> ReadManifestBytes(const fs::path& manifest) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(manifest, error);
  if (error) return ErrnoStatus("look at", manifest, error.value());
  return ReadSmallFile(manifest, bytes);
}

constexpr std::string_view kSealAgain =
    ". If you know that nobody has changed which steps the store has, varve seal compares its "
    "table "
    "files with their tags and seals it again";

Status Changed(const fs::path& manifest) {
  return Status::Corruption(
      manifest.string() +
      " does not have its seal: one of the two was changed without the store's key, or is damaged. "
      "varve check says what is damaged. Take the store from a backup or a snapshot that you "
      "trust" +
      std::string(kSealAgain));
}

// Its log is not read yet.
Result<SealedState> LocateManifest(const fs::path& store) {
  constexpr size_t kMaxBytes = 256;
  const fs::path current = store / "db" / "CURRENT";
  VARVE_ASSIGN_OR_RETURN(std::string name, ReadSmallFile(current, kMaxBytes));
  name.resize(std::min(name.size(), name.find('\n')));
  if (!IsManifestName(name)) return Status::Corruption(current.string() + " names no manifest");
  return SealedState{.manifest = store / "db" / name};
}

// What lies behind the sealed part was being written when the power failed. Then one of the seals
// is about it, and no whole change of the store is in it.
bool IsTorn(std::string_view log, size_t sealed, uint64_t promised) {
  if (promised < log.size()) return false;
  const auto end = VisitManifestStates(log, log.size(), [](const ManifestTables&, size_t) {});
  return end.has_value() && *end <= sealed;
}

// Returns the longest prefix of `log` that has one of the seals. `synced` bytes of it were synced.
Result<size_t> FindSealed(std::string_view log, std::vector<Seal> seals, uint64_t synced,
                          const Sealer& sealer, const fs::path& manifest) {
  std::ranges::sort(seals, {}, &Seal::bytes);
  ManifestTag tag = sealer.BeginManifest();
  size_t added = 0, sealed = 0;
  for (const Seal& seal : seals) {
    if (seal.bytes > log.size()) break;
    tag.Add(log.substr(added, seal.bytes - added));
    added = seal.bytes;
    const std::string found = tag.Get();
    if (::sodium_memcmp(found.data(), seal.tag.data(), found.size()) == 0) sealed = added;
  }
  if (sealed == 0 || sealed < synced) return Changed(manifest);
  if (sealed < log.size() && !IsTorn(log, sealed, seals.back().bytes)) return Changed(manifest);
  return sealed;
}

}  // namespace

fs::path SealFolder(const fs::path& store) { return store / "seal"; }

fs::path SealOfManifest(const fs::path& manifest) {
  return SealFolder(manifest.parent_path().parent_path()) / manifest.filename();
}

void RemoveSealOfManifest(const fs::path& manifest) {
  const fs::path seal = SealOfManifest(manifest);
  std::error_code ignored;
  if (fs::is_directory(fs::symlink_status(seal.parent_path(), ignored))) ::unlink(seal.c_str());
}

// Somebody may have put links there that lead elsewhere.
void RemoveUnusedSeals(const fs::path& store) {
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(SealFolder(store), ignored))) return;
  for (fs::directory_iterator it(SealFolder(store), ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    const fs::path name = it->path().filename();
    std::error_code failed;
    const bool is_used = fs::exists(store / "db" / name, failed) || failed;
    if (IsManifestName(name.string()) && !is_used) ::unlink(it->path().c_str());
  }
}

Result<std::vector<Seal>> ReadSeals(const fs::path& file) {
  VARVE_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(file, kNumSlots * kSlotBytes));
  const size_t slot_bytes = EncodeSeal({.key_id = 0, .bytes = 0, .tag = std::string(32, 0)}).size();
  std::vector<Seal> seals;
  for (size_t i = 0; i < kNumSlots && i * kSlotBytes < text.size(); ++i) {
    const auto slot = DecodeFixedFile(std::string_view(text).substr(i * kSlotBytes, slot_bytes),
                                      file, kMagic, kVersion, kNumFields);
    if (slot.ok() && slot->version == kVersion) seals.push_back(ToSeal(*slot));
  }
  return seals;
}

Status SealFile::Make() {
  std::error_code error;
  const bool is_first = fs::create_directory(path_.parent_path(), error);
  if (error) return ErrnoStatus("make folder", path_.parent_path(), error.value());
  const Status named = is_first ? SyncFolder(path_.parent_path().parent_path()) : Status::Ok();
  if (!named.ok()) {
    fs::remove(path_.parent_path(), error);  // so that whoever tries again syncs its name
    return named;
  }
  if (fs::is_symlink(fs::symlink_status(path_.parent_path(), error))) {
    return Status::Corruption(path_.parent_path().string() + " is a link, expected a folder");
  }
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  FileDescriptor file(::open(path_.c_str(), kFlags, 0644));
  if (!file.is_open()) return ErrnoStatus("create", path_, errno);
  file_.emplace(std::move(file));
  return Status::Ok();
}

Status SealFile::Write(const Seal& seal) {
  if (!file_.has_value()) VARVE_RETURN_IF_ERROR(Make());
  std::string slot = EncodeSeal(seal);
  slot.resize(kSlotBytes);
  const auto at = static_cast<off_t>(num_written_ % kNumSlots * kSlotBytes);
  if (::pwrite(file_->get(), slot.data(), slot.size(), at) != static_cast<ssize_t>(slot.size())) {
    return ErrnoStatus("write", path_, errno);
  }
  if (::fdatasync(file_->get()) != 0) return ErrnoStatus("sync", path_, errno);
  if (num_written_++ > 0) return Status::Ok();
  return SyncFolder(path_.parent_path());
}

SealedManifest::SealedManifest(std::shared_ptr<const Sealer> sealer, const fs::path& manifest,
                               std::unique_ptr<rocksdb::FSWritableFile> target)
    : FSWritableFileOwnerWrapper(std::move(target)),
      sealer_(std::move(sealer)),
      seal_(SealOfManifest(manifest)),
      tag_(sealer_->BeginManifest()) {}

IOStatus SealedManifest::Append(const rocksdb::Slice& data, const IOOptions&, IODebugContext*) {
  held_.append(data.data(), data.size());
  return IOStatus::OK();
}

IOStatus SealedManifest::Append(const rocksdb::Slice& data, const IOOptions& options,
                                const rocksdb::DataVerificationInfo&, IODebugContext* debug) {
  return Append(data, options, debug);
}

IOStatus SealedManifest::Flush(const IOOptions&, IODebugContext*) { return IOStatus::OK(); }

IOStatus SealedManifest::Sync(const IOOptions& options, IODebugContext* debug) {
  IOStatus status = PassOn(options, debug);
  return status.ok() ? FSWritableFileOwnerWrapper::Sync(options, debug) : status;
}

IOStatus SealedManifest::Fsync(const IOOptions& options, IODebugContext* debug) {
  IOStatus status = PassOn(options, debug);
  return status.ok() ? FSWritableFileOwnerWrapper::Fsync(options, debug) : status;
}

uint64_t SealedManifest::GetFileSize(const IOOptions&, IODebugContext*) {
  return bytes_ + held_.size();
}

// RocksDB may sync several changes together. A power cut may leave the first of them alone, which
// then needs a seal. A manifest that CURRENT does not name yet is passed on in one piece.
IOStatus SealedManifest::PassOn(const IOOptions& options, IODebugContext* debug) {
  const std::string held = std::exchange(held_, {});
  std::vector<size_t> ends;
  if (bytes_ > 0) ends = EndsOfChanges(held, bytes_);
  if (ends.empty() || ends.back() != held.size()) ends = {held.size()};
  size_t at = 0;
  for (const size_t end : ends) {
    const IOStatus status =
        at > 0 ? FSWritableFileOwnerWrapper::Sync(options, debug) : IOStatus::OK();
    if (!status.ok()) return status;
    IOStatus passed = PassOnPart(std::string_view(held).substr(at, end - at), options, debug);
    if (!passed.ok()) return passed;
    at = end;
  }
  return IOStatus::OK();
}

IOStatus SealedManifest::PassOnPart(std::string_view part, const IOOptions& options,
                                    IODebugContext* debug) {
  if (part.empty()) return IOStatus::OK();
  tag_.Add(part);
  bytes_ += part.size();
  const Status sealed = seal_.Write({sealer_->key_id(), bytes_, tag_.Get()});
  if (!sealed.ok()) return IOStatus::IOError(sealed.message());
  IOStatus status =
      FSWritableFileOwnerWrapper::Append(rocksdb::Slice(part.data(), part.size()), options, debug);
  return status.ok() ? FSWritableFileOwnerWrapper::Flush(options, debug) : status;
}

// Cuts off what a power cut has left behind the last whole change. Returns the size that is left.
Result<uint64_t> CutTornEnd(const fs::path& manifest) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(manifest, error);
  if (error) return ErrnoStatus("look at", manifest, error.value());
  VARVE_ASSIGN_OR_RETURN(const std::string log, ReadSmallFile(manifest, bytes));
  const auto end = VisitManifestStates(log, bytes, [](const ManifestTables&, size_t) {});
  if (!end.has_value() || *end == bytes) return bytes;
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(manifest, log.substr(0, *end)));
  return *end;
}

Result<std::vector<std::string>> FindForeignLogs(const fs::path& store) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(store / "db", error), end; !error && it != end;
       it.increment(error)) {
    std::error_code failed;
    if (it->path().extension() != ".log" || fs::file_size(it->path(), failed) == 0) continue;
    if (failed == std::errc::no_such_file_or_directory) continue;
    found.push_back(it->path().string() +
                    " is not empty, and varve writes no log: somebody without the store's key has "
                    "written it. Remove it");
  }
  if (error) return ErrnoStatus("list", store / "db", error.value());
  return found;
}

Result<SealedState> ReadUnsealedState(const fs::path& store) {
  VARVE_ASSIGN_OR_RETURN(SealedState state, LocateManifest(store));
  VARVE_ASSIGN_OR_RETURN(state.log, ReadManifestBytes(state.manifest));
  state.file_bytes = state.log.size();
  state.log.resize(EndOfLogRecords(state.log, LogChecksums::kCompare));
  return state;
}

Result<SealedState> ReadSealedState(const fs::path& store, const Sealer& sealer) {
  VARVE_ASSIGN_OR_RETURN(SealedState state, LocateManifest(store));
  const fs::path file = SealOfManifest(state.manifest);
  // The seal is read first: it may be about bytes that are still to come.
  const Result<std::vector<Seal>> seals = ReadSeals(file);
  if (seals.status().code() == StatusCode::kNotFound) {
    return Status::Corruption(file.string() + ", the seal of the store, is missing" +
                              std::string(kSealAgain));
  }
  if (!seals.ok()) return seals.status();
  if (seals->empty()) return Changed(state.manifest);
  std::vector<Seal> ours = *seals;
  std::erase_if(ours, [&](const Seal& seal) { return seal.key_id != sealer.key_id(); });
  if (ours.empty()) {
    return Status::FailedPrecondition(store.string() + " was sealed with the key " +
                                      Hex16(seals->front().key_id) + ", and the given key is " +
                                      Hex16(sealer.key_id()));
  }
  // Before the manifest, which is then as long.
  VARVE_ASSIGN_OR_RETURN(const auto note, ReadManifestNote(store));
  const bool is_noted = note.has_value() && note->manifest == state.manifest.filename();
  VARVE_ASSIGN_OR_RETURN(state.log, ReadManifestBytes(state.manifest));
  state.file_bytes = state.log.size();
  VARVE_ASSIGN_OR_RETURN(
      const size_t sealed,
      FindSealed(state.log, *seals, is_noted ? note->bytes : 0, sealer, state.manifest));
  state.log.resize(sealed);
  return state;
}

Result<SealedState> PrepareSealedState(const fs::path& store, const Sealer& sealer) {
  VARVE_ASSIGN_OR_RETURN(SealedState state, ReadSealedState(store, sealer));
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> logs, FindForeignLogs(store));
  if (!logs.empty()) return Status::Corruption(logs.front());
  RemoveUnusedSeals(store);
  if (state.log.size() == state.file_bytes) return state;
  const FileDescriptor file(::open(state.manifest.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open()) return ErrnoStatus("open", state.manifest, errno);
  if (::ftruncate(file.get(), static_cast<off_t>(state.log.size())) != 0 ||
      ::fdatasync(file.get()) != 0) {
    return ErrnoStatus("cut", state.manifest, errno);
  }
  return state;
}

Status UnknownRecord(const fs::path& manifest) {
  return Status::Corruption(manifest.string() +
                            " has a record that this varve does not understand, so its table files "
                            "are unknown; use the varve that wrote it");
}

Status SealManifest(const SealedState& state, const Sealer& sealer) {
  ManifestTag tag = sealer.BeginManifest();
  tag.Add(state.log);
  SealFile file(SealOfManifest(state.manifest));
  return file.Write({sealer.key_id(), state.log.size(), tag.Get()});
}

}  // namespace varve::internal
