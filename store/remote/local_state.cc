// SPDX-License-Identifier: Apache-2.0
#include "store/remote/local_state.h"

#include <rocksdb/sst_file_reader.h>
#include <rocksdb/unique_id.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "base/digest.h"
#include "base/stop.h"
#include "base/util.h"
#include "store/db/manifest_note.h"
#include "store/db/rocksdb_options.h"
#include "store/db/table_files.h"
#include "store/ops/database_copy.h"
#include "store/remote/scratch_folder.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr int kMaxAttempts = 20;
constexpr auto kBetweenAttempts = std::chrono::milliseconds(20);
constexpr size_t kReadBytes = size_t{1} << 20;

// Returns the tables that a manifest names, with their bytes. No table need be there.
Result<std::vector<rocksdb::LiveFileMetaData>> TablesOf(const std::string& manifest_name,
                                                        const std::string& manifest) {
  const ScratchFolder folder;
  VARVE_RETURN_IF_ERROR(folder.status());
  std::error_code error;
  fs::create_directory(folder.path() / "db", error);
  if (error) return ErrnoStatus("create", folder.path() / "db", error.value());
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(folder.path() / "db" / manifest_name, manifest));
  VARVE_RETURN_IF_ERROR(
      WriteFileAtomically(folder.path() / "db" / "CURRENT", manifest_name + "\n"));
  VARVE_ASSIGN_OR_RETURN(const Families families,
                         FindFamilies(folder.path(), MakeDbOptions(), MakeFamilyOptions(nullptr)));
  return ReadManifest(folder.path(), families);
}

// One try. nullopt = the writer was faster: a file that the manifest names has gone.
Result<std::optional<LocalState>> TryCapture(const fs::path& store) {
  LocalState state;
  VARVE_ASSIGN_OR_RETURN(state.format, ReadFormatFile(store, /*for_writing=*/false));
  VARVE_RETURN_IF_ERROR(CheckManifestLength(store));
  const fs::path db = store / "db";
  Result<std::string> current = ReadCurrent(db);
  if (current.status().code() == StatusCode::kNotFound) return std::optional<LocalState>();
  VARVE_ASSIGN_OR_RETURN(state.manifest_name, std::move(current));
  // It only grows, and each prefix of it is an earlier whole state.
  std::error_code error;
  const uint64_t size = fs::file_size(db / state.manifest_name, error);
  if (error == std::errc::no_such_file_or_directory) return std::optional<LocalState>();
  if (error) return ErrnoStatus("look at", db / state.manifest_name, error.value());
  Result<std::string> manifest = ReadSmallFile(db / state.manifest_name, size);
  if (manifest.status().code() == StatusCode::kNotFound) return std::optional<LocalState>();
  VARVE_ASSIGN_OR_RETURN(state.manifest, std::move(manifest));
  VARVE_ASSIGN_OR_RETURN(const auto files, TablesOf(state.manifest_name, state.manifest));
  for (const rocksdb::LiveFileMetaData& file : files) {
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    const std::string name = fs::path(file.name).filename();
    const fs::path path = db / name;
    Result<FileDescriptor> fd = OpenFileToRead(path);
    if (fd.status().code() == StatusCode::kNotFound) return std::optional<LocalState>();
    VARVE_RETURN_IF_ERROR(fd.status());
    struct stat info {};
    if (::fstat(fd->get(), &info) != 0) return ErrnoStatus("look at", path, errno);
    if (static_cast<uint64_t>(info.st_size) != file.size) {
      return Status::Corruption("table file " + path.string() + " has " +
                                std::to_string(info.st_size) + " bytes, expected " +
                                std::to_string(file.size) + "; nothing was pushed");
    }
    auto table = std::make_unique<LocalTable>(name, path, *std::move(fd), file.size);
    VARVE_RETURN_IF_ERROR(table->FindIdentity());
    state.tables.push_back(std::move(table));
  }
  return std::optional(std::move(state));
}

}  // namespace

std::string LocalTable::OpenName() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

Status LocalTable::Read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("read", path_, errno);
    if (n == 0) return Status::Corruption(path_.string() + " has become shorter");
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return Status::Ok();
}

Result<Digest> LocalTable::ComputeFileDigest() const {
  const StopFlag stop;
  DigestStream digest(0);
  std::vector<std::byte> block(std::min<uint64_t>(kReadBytes, bytes_));
  for (uint64_t at = 0; at < bytes_; at += block.size()) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    block.resize(std::min<uint64_t>(kReadBytes, bytes_ - at));
    VARVE_RETURN_IF_ERROR(Read(at, block));
    digest.Add(block);
  }
  return digest.Get();
}

Status LocalTable::Verify() const {
  const Status status = VerifyTableFile(OpenName());
  if (status.ok() || IsShortage(status)) return status;
  return Status::Corruption("table file " + path_.string() +
                            " is damaged, and nothing was pushed: " + status.message() +
                            "; check --read-data names the steps that it hits");
}

Result<Digest> LocalTable::VerifyAndDigest() const {
  VARVE_RETURN_IF_ERROR(Verify());
  return ComputeFileDigest();
}

// RocksDB gives each table file a number that no other file has on any host.
Status LocalTable::FindIdentity() {
  rocksdb::SstFileReader reader(MakeTableOptions());
  const Status opened = FromRocksDb(reader.Open(OpenName()), "opening " + path_.string());
  if (IsShortage(opened)) return opened;
  if (!opened.ok()) {
    return Status::Corruption("table file " + path_.string() +
                              " cannot be opened, and nothing was pushed: " + opened.message());
  }
  std::string number;
  const auto properties = reader.GetTableProperties();
  if (properties != nullptr && rocksdb::GetUniqueIdFromTableProperties(*properties, &number).ok()) {
    identity_ = "u";
    for (const char c : number) {
      char digits[3];
      std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(c));
      identity_ += digits;
    }
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(const Digest digest, ComputeFileDigest());
  identity_ = "d" + ToHex(digest);
  return Status::Ok();
}

Result<LocalState> LocalState::Capture(const fs::path& store) {
  RaiseDescriptorLimit();  // all tables are held open
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    VARVE_ASSIGN_OR_RETURN(auto state, TryCapture(store));
    if (state.has_value()) return *std::move(state);
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  // What is missing may be lost.
  const auto lost = FindLostTables(store);
  if (!lost.ok()) return lost.status();
  if (!lost->empty()) {
    return Status::Corruption(store.string() +
                              " is damaged, and nothing was pushed: " + lost->front().what);
  }
  return Status::Unavailable(store.string() + " changes too fast to be pushed");
}

}  // namespace varve::internal
