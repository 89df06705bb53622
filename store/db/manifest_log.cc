// SPDX-License-Identifier: Apache-2.0
#include "store/db/manifest_log.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/coding.h"

namespace varve::internal {

namespace {

constexpr size_t kBlockBytes = 32768;
constexpr size_t kHeaderBytes = 7;
enum RecordType : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

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

uint32_t ReadLittleEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// `log` starts at `offset` of the whole log. Calls `visit(type, part)` for each physical record,
// and returns where the last whole logical record ends.
template <typename Visit>
size_t WalkLog(std::string_view log, size_t offset, LogChecksums checksums, const Visit& visit) {
  size_t end = 0;
  for (size_t at = 0;;) {
    const size_t left_in_block = kBlockBytes - (offset + at) % kBlockBytes;
    if (left_in_block < kHeaderBytes) at += left_in_block;
    const size_t room =
        std::min(kBlockBytes - (offset + at) % kBlockBytes, log.size() - std::min(at, log.size()));
    if (room < kHeaderBytes) return end;
    const size_t length = ReadLittleEndian(log.substr(at + 4, 2));
    const auto type = static_cast<uint8_t>(log[at + 6]);
    if (type < kFull || type > kLast || kHeaderBytes + length > room) return end;
    if (checksums == LogChecksums::kCompare &&
        MaskedCrc(log.substr(at + 6, 1 + length)) != ReadLittleEndian(log.substr(at, 4))) {
      return end;
    }
    visit(static_cast<RecordType>(type), log.substr(at + kHeaderBytes, length));
    at += kHeaderBytes + length;
    if (type == kFull || type == kLast) end = at;
  }
}

}  // namespace

size_t EndOfLogRecords(std::string_view log, LogChecksums checksums) {
  return WalkLog(log, 0, checksums, [](RecordType, std::string_view) {});
}

std::optional<LogRecords> ReadLogRecords(std::string_view log, size_t offset) {
  LogRecords found;
  std::optional<std::string> begun;
  bool is_sound = true;
  WalkLog(log, offset, LogChecksums::kCompare, [&](RecordType type, std::string_view part) {
    const bool is_start = type == kFull || type == kFirst;
    is_sound = is_sound && is_start != begun.has_value();
    if (!is_sound) return;
    if (is_start) begun.emplace();
    begun->append(part);
    if (type == kFirst || type == kMiddle) return;
    found.records.push_back(*std::exchange(begun, std::nullopt));
    found.ends.push_back(static_cast<size_t>(part.data() - log.data()) + part.size());
  });
  if (!is_sound) return std::nullopt;
  return found;
}

std::optional<std::vector<std::string>> SplitLog(std::string_view log) {
  auto found = ReadLogRecords(log);
  if (!found.has_value() || found->end() != log.size()) return std::nullopt;
  return std::move(found->records);
}

void AppendLogRecord(std::string_view record, std::string* log) {
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
    AppendLittle(MaskedCrc(covered), log);
    AppendLittle(static_cast<uint16_t>(part.size()), log);
    *log += covered;
    is_first = false;
  } while (!record.empty());
}

}  // namespace varve::internal
