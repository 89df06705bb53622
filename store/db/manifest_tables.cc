// SPDX-License-Identifier: Apache-2.0
#include "store/db/manifest_tables.h"

#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "base/util.h"
#include "store/db/manifest_log.h"
#include "store/db/manifest_note.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

enum Tag : uint64_t {
  kComparator = 1,
  kLogNumber = 2,
  kNextFileNumber = 3,
  kLastSequence = 4,
  kDeletedFile = 6,
  kPreviousLogNumber = 9,
  kLeastLogToKeep = 10,
  kNewFile = 103,
  kFamily = 200,
  kFamilyAdd = 201,
  kFamilyDrop = 202,
  kMaxFamily = 203,
  kInAtomicGroup = 300,
  kDatabaseId = 8193,
};
// Numbers of the fields that follow a new file, each of which has a length. Whoever does not know a
// field with the second number in it must not skip it.
constexpr uint64_t kEndOfFields = 1;
constexpr uint64_t kTagOfFile = 7;  // RocksDB's checksum of the file
constexpr uint64_t kMustBeKnown = 64;

// Takes numbers and texts off the front of a record. After the first that is not there, none is.
class Fields {
 public:
  explicit Fields(std::string_view record) : left_(record) {}

  bool is_sound() const { return is_sound_; }
  bool is_over() const { return left_.empty(); }
  uint64_t Number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !left_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(left_.front());
      left_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    return Fail();
  }
  std::string_view Text() {
    const uint64_t size = Number();
    if (!is_sound_ || size > left_.size()) {
      Fail();
      return {};
    }
    const std::string_view text = left_.substr(0, size);
    left_.remove_prefix(size);
    return text;
  }

 private:
  uint64_t Fail() {
    is_sound_ = false;
    left_ = {};
    return 0;
  }

  std::string_view left_;
  bool is_sound_ = true;
};

// What one record changes.
struct Edit {
  uint32_t family = 0;
  std::optional<std::string> family_name;  // of a family that it adds
  bool drops_family = false;
  std::vector<std::pair<uint64_t, uint64_t>> deleted;  // level and number
  std::map<uint64_t, ManifestTables::Table> added;
  std::optional<uint64_t> records_to_come;  // of its atomic group
};

// False: the file has a field that is not known to leave its name alone.
bool AddFile(Fields* fields, Edit* edit) {
  ManifestTables::Table table;
  table.level = fields->Number();
  const uint64_t number = fields->Number();
  table.bytes = fields->Number();
  fields->Text();  // first and last key
  fields->Text();
  fields->Number();  // first and last sequence number
  fields->Number();
  for (uint64_t field = fields->Number(); field != kEndOfFields; field = fields->Number()) {
    const std::string_view text = fields->Text();
    if (field == kTagOfFile) table.tag = text;
    if ((field & kMustBeKnown) != 0 || !fields->is_sound()) return false;
  }
  return edit->added.emplace(number, table).second;
}

std::optional<Edit> DecodeEdit(std::string_view record) {
  Edit edit;
  Fields fields(record);
  while (!fields.is_over()) {
    switch (fields.Number()) {
      case kComparator:
      case kDatabaseId:
        fields.Text();
        break;
      case kLogNumber:
      case kNextFileNumber:
      case kLastSequence:
      case kPreviousLogNumber:
      case kLeastLogToKeep:
      case kMaxFamily:
        fields.Number();
        break;
      case kDeletedFile: {
        const uint64_t level = fields.Number();
        edit.deleted.emplace_back(level, fields.Number());
        break;
      }
      case kNewFile:
        if (!AddFile(&fields, &edit)) return std::nullopt;
        break;
      case kFamily:
        if (const uint64_t family = fields.Number(); family <= UINT32_MAX) {
          edit.family = static_cast<uint32_t>(family);
          break;
        }
        return std::nullopt;
      case kFamilyAdd:
        edit.family_name = fields.Text();
        break;
      case kFamilyDrop:
        edit.drops_family = true;
        break;
      case kInAtomicGroup:
        edit.records_to_come = fields.Number();
        break;
      default:
        return std::nullopt;
    }
  }
  if (!fields.is_sound()) return std::nullopt;
  return edit;
}

// False: it does not fit what was there before.
bool Apply(Edit edit, ManifestTables* found) {
  if (edit.family_name.has_value() &&
      !found->families.emplace(edit.family, *std::move(edit.family_name)).second) {
    return false;
  }
  if (!found->families.contains(edit.family)) return false;
  if (edit.drops_family) {
    found->families.erase(edit.family);
    std::erase_if(found->tables,
                  [&](const auto& table) { return table.second.family == edit.family; });
    return true;
  }
  // A file that goes to another level is deleted and added by one record.
  for (const auto& [level, number] : edit.deleted) {
    const auto table = found->tables.find(number);
    if (table == found->tables.end() || table->second.level != level ||
        table->second.family != edit.family) {
      return false;
    }
    found->tables.erase(table);
  }
  for (auto& [number, table] : edit.added) {
    table.family = edit.family;
    if (!found->tables.emplace(number, table).second) return false;
  }
  return true;
}

}  // namespace

std::set<std::string> ManifestTables::FileNames() const {
  std::set<std::string> names;
  for (const auto& [number, table] : tables) names.insert(TableFileName(number));
  return names;
}

std::map<std::string, std::set<uint64_t>> ManifestTables::ByFamily() const {
  std::map<std::string, std::set<uint64_t>> numbers;
  for (const auto& [number, table] : tables) numbers[families.at(table.family)].insert(number);
  return numbers;
}

std::string TableFileName(uint64_t number) {
  char name[32];
  std::snprintf(name, sizeof(name), "%06llu.sst", static_cast<unsigned long long>(number));
  return name;
}

std::optional<size_t> VisitManifestStates(std::string_view log, size_t from,
                                          const VisitState& visit) {
  const auto read = ReadLogRecords(log);
  if (!read.has_value()) return std::nullopt;
  ManifestTables found;
  found.families.emplace(0, "default");
  size_t end = 0;           // of the record of `found`
  std::vector<Edit> group;  // that waits for its last record
  for (size_t i = 0; i < read->records.size(); ++i) {
    std::optional<Edit> edit = DecodeEdit(read->records[i]);
    if (!edit.has_value()) return std::nullopt;
    if (!edit->records_to_come.has_value() && !group.empty()) return std::nullopt;
    const uint64_t to_come = edit->records_to_come.value_or(0);
    if (!group.empty() && to_come + 1 != *group.back().records_to_come) return std::nullopt;
    group.push_back(*std::move(edit));
    if (to_come > 0) continue;
    if (read->ends[i] > from) visit(found, end);
    for (Edit& each : group) {
      if (!Apply(std::move(each), &found)) return std::nullopt;
    }
    group.clear();
    end = read->ends[i];
  }
  visit(found, end);
  return end;
}

std::vector<size_t> EndsOfChanges(std::string_view part, size_t offset) {
  std::vector<size_t> ends;
  const auto read = ReadLogRecords(part, offset);
  for (size_t i = 0; read.has_value() && i < read->records.size(); ++i) {
    const std::optional<Edit> edit = DecodeEdit(read->records[i]);
    if (!edit.has_value()) return {};
    if (edit->records_to_come.value_or(0) == 0) ends.push_back(read->ends[i]);
  }
  return ends;
}

std::optional<ManifestTables> DecodeManifest(std::string_view log) {
  ManifestTables last;
  const auto end = VisitManifestStates(log, log.size(),
                                       [&](const ManifestTables& state, size_t) { last = state; });
  if (!end.has_value() || *end != log.size()) return std::nullopt;
  return last;
}

std::optional<ManifestText> ReadManifestText(const fs::path& store) {
  constexpr size_t kMaxCurrentBytes = 256;
  constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;
  Result<std::string> current = ReadSmallFile(store / "db" / "CURRENT", kMaxCurrentBytes);
  if (!current.ok() || !current->ends_with('\n')) return std::nullopt;
  const std::string name = current->substr(0, current->size() - 1);
  if (!IsManifestName(name)) return std::nullopt;
  const fs::path manifest = store / "db" / name;
  std::error_code error;
  const uint64_t bytes = fs::file_size(manifest, error);
  if (error || bytes > kMaxManifestBytes) return std::nullopt;
  Result<std::string> log = ReadSmallFile(manifest, bytes);
  if (!log.ok()) return std::nullopt;
  return ManifestText{*std::move(current), *std::move(log)};
}

std::optional<ManifestTables> ReadManifestTables(const fs::path& store) {
  const auto text = ReadManifestText(store);
  return text.has_value() ? DecodeManifest(text->log) : std::nullopt;
}

}  // namespace varve::internal
