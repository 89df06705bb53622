// SPDX-License-Identifier: Apache-2.0
//
// A manifest is a log of RocksDB: blocks of 32 KiB, and in them physical records of a masked CRC32C
// (u32 LE), a length (u16 LE), a type and as many bytes. A logical record is one physical record,
// or a first one, any number of middle ones and a last one. Each is a VersionEdit: tags and values
// as varints. Both have not changed since LevelDB. The three tags that are needed here are stable
// parts of the format of every manifest.
#include "store/db/salvage_view.h"

#include <rocksdb/sst_file_reader.h>

#include <algorithm>
#include <array>
#include <set>
#include <system_error>

#include "base/stop.h"
#include "base/util.h"
#include "store/db/rocksdb_options.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = 32768;
constexpr size_t kHeaderBytes = 7;
enum RecordType : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };
constexpr uint64_t kDeletedFileTag = 6;
constexpr uint64_t kFamilyTag = 200;

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}

// CRC32C, masked as RocksDB does it for values that are stored beside what they cover.
uint32_t MaskedCrc(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeCrcTable();
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

void AppendLittleEndian(uint32_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

uint32_t ReadLittleEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// Returns where the last whole logical record ends.
size_t EndOfRecords(std::string_view log) {
  size_t end = 0;
  for (size_t at = 0;;) {
    const size_t left_in_block = kBlockBytes - at % kBlockBytes;
    if (left_in_block < kHeaderBytes) at += left_in_block;
    if (at + kHeaderBytes > log.size()) return end;
    const size_t length = ReadLittleEndian(log.substr(at + 4, 2));
    const auto type = static_cast<uint8_t>(log[at + 6]);
    if (type < kFull || type > kLast || at + kHeaderBytes + length > log.size()) return end;
    const uint32_t crc = MaskedCrc(log.substr(at + 6, 1 + length));
    if (crc != ReadLittleEndian(log.substr(at, 4))) return end;
    at += kHeaderBytes + length;
    if (type == kFull || type == kLast) end = at;
  }
}

void AppendRecord(std::string_view record, std::string* log) {
  bool is_first = true;
  do {
    size_t room = kBlockBytes - log->size() % kBlockBytes;
    if (room < kHeaderBytes) {
      log->append(room, '\0');
      room = kBlockBytes;
    }
    const std::string_view part = record.substr(0, room - kHeaderBytes);
    record.remove_prefix(part.size());
    const bool is_last = record.empty();
    const RecordType type = is_last ? (is_first ? kFull : kLast) : (is_first ? kFirst : kMiddle);
    std::string covered(1, static_cast<char>(type));
    covered += part;
    AppendLittleEndian(MaskedCrc(covered), 4, log);
    AppendLittleEndian(static_cast<uint32_t>(part.size()), 2, log);
    *log += covered;
    is_first = false;
  } while (!record.empty());
}

// Without its properties RocksDB opens an ingested table, and takes its records for older ones.
bool HasProperties(const fs::path& file) {
  rocksdb::Options options;
  options.info_log = MakeDbOptions().info_log;
  rocksdb::SstFileReader reader(options);
  if (!reader.Open(file.string()).ok()) return false;
  const auto properties = reader.GetTableProperties();
  return properties != nullptr && !properties->column_family_name.empty();
}

// The database in `view` names the tables that it should.
Status CheckView(const fs::path& view, const std::set<std::string>& expected) {
  VARVE_ASSIGN_OR_RETURN(const std::set<std::string> found, FindTableNames(view));
  if (found == expected) return Status::Ok();
  return Status::Corruption("the manifest of the view in " + view.string() + " names " +
                            std::to_string(found.size()) + " table files, expected " +
                            std::to_string(expected.size()));
}

}  // namespace

Result<std::vector<DamagedTable>> FindDamagedTables(const fs::path& store,
                                                    const Progress& progress) {
  VARVE_ASSIGN_OR_RETURN(const Families families,
                         FindFamilies(store, MakeDbOptionsOf(store), MakeFamilyOptions(nullptr)));
  FamilyIds ids;
  VARVE_ASSIGN_OR_RETURN(const auto files, ReadManifest(store, families, &ids));
  VARVE_ASSIGN_OR_RETURN(const auto lost, FindLostTables(store, families));
  std::map<std::string, std::string> lost_because;
  for (const LostTable& table : lost) lost_because.emplace(table.file, table.what);
  uint64_t total = 0, done = 0;
  for (const auto& file : files) total += file.size;
  std::vector<DamagedTable> damaged;
  for (const rocksdb::LiveFileMetaData& file : files) {
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    DamagedTable table;
    table.family = file.column_family_name;
    table.file = fs::path(file.name).filename();
    table.number = file.file_number;
    table.level = file.level;
    table.family_id = ids[file.column_family_name];
    table.first_key = file.smallestkey;
    table.last_key = file.largestkey;
    const fs::path path = DbPath(store) / table.file;
    if (const auto reason = lost_because.find(table.file); reason != lost_because.end()) {
      table.what = reason->second;
    } else if (const Status verified = VerifyTableFile(path); !verified.ok()) {
      table.what = "table file " + path.string() + " of family " + table.family +
                   " has a damaged block: " + verified.message();
      table.is_readable = HasProperties(path);
    }
    if (!table.what.empty()) damaged.push_back(std::move(table));
    done += file.size;
    if (progress) progress(done, total);
  }
  return damaged;
}

std::string WithoutTables(std::string manifest, std::span<const DamagedTable> left_out) {
  manifest.resize(EndOfRecords(manifest));
  for (const DamagedTable& table : left_out) {
    std::string edit;
    AppendVarint(kDeletedFileTag, &edit);
    AppendVarint(static_cast<uint64_t>(table.level), &edit);
    AppendVarint(table.number, &edit);
    if (table.family_id != 0) {
      AppendVarint(kFamilyTag, &edit);
      AppendVarint(table.family_id, &edit);
    }
    AppendRecord(edit, &manifest);
  }
  return manifest;
}

Status MakeSalvageView(const fs::path& store, const FormatFile& format,
                       std::span<const DamagedTable> left_out, const fs::path& view) {
  const fs::path from = DbPath(store), to = view / "db";
  std::error_code error;
  fs::create_directories(to, error);
  if (error) return Status::IOError("cannot make " + to.string() + ": " + error.message());
  VARVE_ASSIGN_OR_RETURN(std::set<std::string> names, FindTableNames(store));
  for (const DamagedTable& table : left_out) names.erase(table.file);
  for (const std::string& name : names) {
    fs::create_hard_link(from / name, to / name, error);
    if (!error) continue;
    return Status::FailedPrecondition("cannot link " + (from / name).string() + " into " +
                                      to.string() + ": " + error.message() +
                                      "; both must lie on one file system that has hard links");
  }
  constexpr size_t kMaxCurrentBytes = 256;
  VARVE_ASSIGN_OR_RETURN(std::string current, ReadSmallFile(from / "CURRENT", kMaxCurrentBytes));
  const std::string manifest = current.substr(0, current.find('\n'));
  const uint64_t bytes = fs::file_size(from / manifest, error);
  if (error) return Status::IOError("cannot look at " + manifest + ": " + error.message());
  VARVE_ASSIGN_OR_RETURN(std::string log, ReadSmallFile(from / manifest, bytes));
  VARVE_RETURN_IF_ERROR(
      WriteFileAtomically(to / manifest, WithoutTables(std::move(log), left_out)));
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(to / "CURRENT", current));
  VARVE_RETURN_IF_ERROR(WriteFormatFile(view, format));
  return CheckView(view, names);
}

}  // namespace varve::internal
