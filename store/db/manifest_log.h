// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a manifest, without RocksDB. A manifest is a log of RocksDB: blocks of 32 KiB, and
// in them physical records of a masked CRC32C (u32 LE), a length (u16 LE), a type and as many
// bytes. A logical record is one physical record, or a first one, any number of middle ones and a
// last one. The log has not changed since LevelDB. Stateless.
//
// RocksDB ends at the first header that it does not understand, as if the writer had died there:
// zeros, another type, or a length beyond the end. It says nothing then, and shows the earlier
// state. So whoever knows how long a manifest must be looks at the headers first.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace varve::internal {

enum class LogChecksums { kIgnore, kCompare };

// Returns where the last whole logical record ends.
size_t EndOfLogRecords(std::string_view log, LogChecksums checksums);
// The whole logical records at the start of a log, and where each ends in it. nullopt: parts of two
// records are mixed up.
struct LogRecords {
  std::vector<std::string> records;
  std::vector<size_t> ends;

  // Where the last one ends.
  size_t end() const { return ends.empty() ? 0 : ends.back(); }
};
//
// `log` may be a part of a log that starts with a whole record, `offset` bytes behind its start.
std::optional<LogRecords> ReadLogRecords(std::string_view log, size_t offset = 0);
// Returns the logical records of a log. nullopt: it does not end with a whole one, or one of its
// checksums is wrong.
std::optional<std::vector<std::string>> SplitLog(std::string_view log);
// Appends one logical record to a log that ends with a whole one.
void AppendLogRecord(std::string_view record, std::string* log);

}  // namespace varve::internal
