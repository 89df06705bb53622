// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/zip_file.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/util.h"
#include "cli/formats/byte_reader.h"

namespace varve::internal::formats {
namespace {

constexpr uint32_t kLocalMagic = 0x04034b50;
constexpr uint32_t kCentralMagic = 0x02014b50;
constexpr uint32_t kEndMagic = 0x06054b50;
constexpr uint32_t kEnd64Magic = 0x06064b50;
constexpr uint32_t kLocator64Magic = 0x07064b50;
constexpr size_t kLocalBytes = 30;
constexpr size_t kCentralBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kEnd64Bytes = 56;
constexpr size_t kLocator64Bytes = 20;
constexpr uint16_t kIn64Short = UINT16_MAX;
constexpr uint32_t kIn64 = UINT32_MAX;  // the value is in the zip64 record
constexpr uint16_t kExtra64 = 1;
constexpr uint16_t kEncrypted = 1;
constexpr uint16_t kHasDescriptor = 1 << 3;
// Compression levels, a descriptor after the data, and a name in UTF-8.
constexpr uint16_t kKnownFlags = 1 << 1 | 1 << 2 | kHasDescriptor | 1 << 11;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;
// The most that deflate makes of a byte, and room for an end of few bits.
constexpr uint64_t kMaxInflation = 1032;
constexpr uint64_t kInflationSlack = 1032;

uint16_t LoadU16(std::span<const std::byte> bytes) {
  return static_cast<uint16_t>(std::to_integer<int>(bytes[0]) | std::to_integer<int>(bytes[1])
                                                                    << 8);
}

// The directory's place, as the end of the archive tells it.
struct Directory {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t num_entries = 0;
};

// An entry, and the bytes that it takes from its local header to the end of its data.
struct Placed {
  ZipEntry entry;
  uint64_t begin = 0;
  uint64_t end = 0;
};

std::string Found(std::string_view what, uint64_t found, std::string_view expected) {
  return std::string(what) + " is " + std::to_string(found) + ", expected " + std::string(expected);
}

class ZipReader {
 public:
  ZipReader(std::span<const std::byte> archive, const FetchBytes& fetch)
      : archive_(archive), fetch_(fetch) {}

  Result<std::vector<ZipEntry>> Read() {
    VARVE_RETURN_IF_ERROR(FindDirectory());
    VARVE_RETURN_IF_ERROR(ReadDirectory());
    std::sort(placed_.begin(), placed_.end(),
              [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
    VARVE_RETURN_IF_ERROR(CheckOverlap());
    std::vector<ZipEntry> entries;
    entries.reserve(placed_.size());
    for (Placed& placed : placed_) entries.push_back(std::move(placed.entry));
    return entries;
  }

 private:
  Result<std::span<const std::byte>> Get(std::string_view what, uint64_t begin, uint64_t size) {
    if (begin > archive_.size() || size > archive_.size() - begin) {
      return ErrorAt(begin, "the " + std::string(what) + " needs " + std::to_string(size) +
                                " bytes; the archive has " + std::to_string(archive_.size()) +
                                " in all");
    }
    const auto part = archive_.subspan(begin, size);
    if (fetch_) VARVE_RETURN_IF_ERROR(fetch_(part));
    return part;
  }

  // The end record is the last of the archive, before a comment whose length it says.
  Result<uint64_t> FindEnd() {
    constexpr uint64_t kMaxTail = kEndBytes + UINT16_MAX;
    const uint64_t size = archive_.size();
    if (size >= kEndBytes) {
      const uint64_t tail_bytes = std::min(size, kMaxTail);
      // Archives seldom have a comment, so that the last bytes are enough.
      VARVE_ASSIGN_OR_RETURN(const auto last, Get("end record", size - kEndBytes, kEndBytes));
      if (LoadU32(last) == kEndMagic && LoadU16(last.subspan(20)) == 0) return size - kEndBytes;
      VARVE_ASSIGN_OR_RETURN(const auto tail, Get("end record", size - tail_bytes, tail_bytes));
      for (uint64_t i = tail_bytes - kEndBytes + 1; i-- > 0;) {
        const auto record = tail.subspan(i, kEndBytes);
        const uint64_t comment = tail_bytes - i - kEndBytes;
        if (LoadU32(record) == kEndMagic && LoadU16(record.subspan(20)) == comment) {
          return size - tail_bytes + i;
        }
      }
    }
    return ErrorAt(size,
                   "there is no end record of a zip archive: the file is cut short, or is "
                   "no zip archive");
  }

  Status FindDirectory() {
    VARVE_ASSIGN_OR_RETURN(const uint64_t at, FindEnd());
    const auto record = archive_.subspan(at, kEndBytes);
    if (LoadU16(record.subspan(4)) != 0 || LoadU16(record.subspan(6)) != 0) {
      return ErrorAt(at, "the archive has several parts, which varve does not read");
    }
    directory_.num_entries = LoadU16(record.subspan(10));
    if (LoadU16(record.subspan(8)) != directory_.num_entries) {
      return ErrorAt(at, Found("the number of entries", LoadU16(record.subspan(8)),
                               std::to_string(directory_.num_entries)));
    }
    uint64_t size = LoadU32(record.subspan(12));
    directory_.begin = LoadU32(record.subspan(16));
    uint64_t end = at;
    if (at >= kLocator64Bytes) {
      VARVE_ASSIGN_OR_RETURN(const auto locator,
                             Get("zip64 locator", at - kLocator64Bytes, kLocator64Bytes));
      if (LoadU32(locator) == kLocator64Magic) {
        VARVE_RETURN_IF_ERROR(Read64(at - kLocator64Bytes, locator, &size, &end));
      }
    }
    if (directory_.begin > end || size != end - directory_.begin) {
      return ErrorAt(at, "the directory has " + std::to_string(size) + " bytes from byte " +
                             std::to_string(directory_.begin) + " on, expected that it ends at " +
                             std::to_string(end));
    }
    directory_.end = end;
    return Status::Ok();
  }

  // Replaces what does not fit into the end record, and checks that the rest is equal.
  Status Read64(uint64_t at, std::span<const std::byte> locator, uint64_t* size, uint64_t* end) {
    const uint64_t begin = LoadU64(locator.subspan(8));
    if (at < kEnd64Bytes || begin != at - kEnd64Bytes) {
      return ErrorAt(at, Found("the place of the zip64 end record", begin,
                               "the " + std::to_string(kEnd64Bytes) + " bytes before"));
    }
    VARVE_ASSIGN_OR_RETURN(const auto record, Get("zip64 end record", begin, kEnd64Bytes));
    if (LoadU32(record) != kEnd64Magic || LoadU64(record.subspan(4)) != kEnd64Bytes - 12) {
      return ErrorAt(begin, "there is no zip64 end record");
    }
    const uint64_t entries64 = LoadU64(record.subspan(32));
    const uint64_t size64 = LoadU64(record.subspan(40));
    const uint64_t begin64 = LoadU64(record.subspan(48));
    const bool agrees =
        LoadU64(record.subspan(24)) == entries64 &&
        (directory_.num_entries == kIn64Short || directory_.num_entries == entries64) &&
        (*size == kIn64 || *size == size64) &&
        (directory_.begin == kIn64 || directory_.begin == begin64);
    if (!agrees) return ErrorAt(begin, "the zip64 end record and the end record disagree");
    directory_.num_entries = entries64;
    directory_.begin = begin64;
    *size = size64;
    *end = begin;
    return Status::Ok();
  }

  Status ReadDirectory() {
    const uint64_t bytes = directory_.end - directory_.begin;
    if (directory_.num_entries > bytes / kCentralBytes) {
      return ErrorAt(directory_.begin, "the directory of " + std::to_string(bytes) +
                                           " bytes cannot have " +
                                           std::to_string(directory_.num_entries) + " entries");
    }
    VARVE_RETURN_IF_ERROR(Get("directory", directory_.begin, bytes).status());
    placed_.reserve(directory_.num_entries);
    uint64_t at = directory_.begin;
    for (uint64_t i = 0; i < directory_.num_entries; ++i) {
      VARVE_RETURN_IF_ERROR(ReadEntry(&at));
    }
    if (at == directory_.end) return Status::Ok();
    return ErrorAt(at, "the directory goes on after its last entry");
  }

  Status ReadEntry(uint64_t* at) {
    const uint64_t begin = *at;
    const auto left = archive_.subspan(begin, directory_.end - begin);
    if (left.size() < kCentralBytes || LoadU32(left) != kCentralMagic) {
      return ErrorAt(begin, "there is no entry of the directory");
    }
    const size_t name_bytes = LoadU16(left.subspan(28));
    const size_t extra_bytes = LoadU16(left.subspan(30));
    const size_t comment_bytes = LoadU16(left.subspan(32));
    const size_t size = kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    if (size > left.size()) {
      return ErrorAt(begin, "an entry of the directory reaches past its end");
    }
    *at += size;
    Placed placed;
    placed.entry.name = AsString(left.subspan(kCentralBytes, name_bytes));
    if (!names_.insert(placed.entry.name).second) {
      return ErrorAt(begin, "the entry \"" + placed.entry.name + "\" comes twice");
    }
    const Status status =
        ReadFields(left, left.subspan(kCentralBytes + name_bytes, extra_bytes), &placed);
    if (!status.ok() && status.code() != StatusCode::kInvalidArgument) return status;  // the file's
    if (!status.ok()) {
      return ErrorAt(begin, "entry \"" + placed.entry.name + "\": " + status.message());
    }
    placed_.push_back(std::move(placed));
    return Status::Ok();
  }

  Status ReadFields(std::span<const std::byte> record, std::span<const std::byte> extra,
                    Placed* placed) {
    ZipEntry& entry = placed->entry;
    const uint16_t flags = LoadU16(record.subspan(8));
    const uint16_t method = LoadU16(record.subspan(10));
    if ((flags & kEncrypted) != 0) return Status::InvalidArgument("it is encrypted");
    if ((flags & ~kKnownFlags) != 0) {
      return Status::InvalidArgument(Found("flags", flags, "bits 1, 2, 3 and 11 at most"));
    }
    if (method != kStored && method != kDeflated) {
      return Status::InvalidArgument(
          Found("the compression method", method, "0 (stored) or 8 (deflated)"));
    }
    entry.is_deflated = method == kDeflated;
    entry.crc = LoadU32(record.subspan(16));
    uint64_t stored = LoadU32(record.subspan(20));
    entry.size = LoadU32(record.subspan(24));
    placed->begin = LoadU32(record.subspan(42));
    VARVE_RETURN_IF_ERROR(ReadExtra(extra, &entry.size, &stored, &placed->begin));
    if (!entry.is_deflated && stored != entry.size) {
      return Status::InvalidArgument("it has " + std::to_string(stored) +
                                     " bytes for contents of " + std::to_string(entry.size) +
                                     ", and is not compressed");
    }
    if (entry.is_deflated && (entry.size / kMaxInflation > stored + kInflationSlack)) {
      return Status::InvalidArgument("its " + std::to_string(stored) +
                                     " bytes cannot be deflated contents of " +
                                     std::to_string(entry.size));
    }
    return FindData(flags, method, stored, placed);
  }

  // Replaces what does not fit into the directory's fields.
  static Status ReadExtra(std::span<const std::byte> extra, uint64_t* size, uint64_t* stored,
                          uint64_t* begin) {
    while (extra.size() >= 4) {
      const uint16_t id = LoadU16(extra);
      const size_t bytes = LoadU16(extra.subspan(2));
      extra = extra.subspan(4);
      if (bytes > extra.size()) return Status::InvalidArgument("an extra field is cut short");
      auto field = extra.first(bytes);
      extra = extra.subspan(bytes);
      if (id != kExtra64) continue;
      for (uint64_t* value : {size, stored, begin}) {
        if (*value != kIn64) continue;
        if (field.size() < 8) return Status::InvalidArgument("its zip64 field is cut short");
        *value = LoadU64(field);
        field = field.subspan(8);
      }
      return Status::Ok();
    }
    return Status::Ok();
  }

  Status FindData(uint16_t flags, uint16_t method, uint64_t stored, Placed* placed) {
    ZipEntry& entry = placed->entry;
    const std::string at = ", at byte " + std::to_string(placed->begin) + ", ";
    const uint64_t limit = directory_.begin;
    if (placed->begin > limit || limit - placed->begin < kLocalBytes + entry.name.size()) {
      return Status::InvalidArgument("its local header" + at + "reaches into the directory");
    }
    VARVE_ASSIGN_OR_RETURN(const auto local,
                           Get("local header", placed->begin, kLocalBytes + entry.name.size()));
    if (LoadU32(local) != kLocalMagic) {
      return Status::InvalidArgument("its local header" + at + "is none");
    }
    if (LoadU16(local.subspan(6)) != flags || LoadU16(local.subspan(8)) != method ||
        LoadU16(local.subspan(26)) != entry.name.size() ||
        AsString(local.subspan(kLocalBytes)) != entry.name) {
      return Status::InvalidArgument("its local header" + at + "is that of another entry");
    }
    const bool says_sizes = (flags & kHasDescriptor) == 0;
    const auto agrees = [&local](size_t field, uint64_t value) {
      return LoadU32(local.subspan(field)) == kIn64 || LoadU32(local.subspan(field)) == value;
    };
    if (says_sizes && (LoadU32(local.subspan(14)) != entry.crc || !agrees(18, stored) ||
                       !agrees(22, entry.size))) {
      return Status::InvalidArgument("its local header" + at +
                                     "has other sizes or another CRC-32 than the directory");
    }
    const uint64_t data =
        placed->begin + kLocalBytes + entry.name.size() + LoadU16(local.subspan(28));
    if (data > limit || stored > limit - data) {
      return Status::InvalidArgument("its " + std::to_string(stored) + " bytes from byte " +
                                     std::to_string(data) + " on reach into the directory");
    }
    entry.data = archive_.subspan(data, stored);
    placed->end = data + stored;
    return Status::Ok();
  }

  // `placed_` is sorted by begin.
  Status CheckOverlap() const {
    for (size_t i = 1; i < placed_.size(); ++i) {
      if (placed_[i - 1].end <= placed_[i].begin) continue;
      return ErrorAt(placed_[i].begin, "the entry \"" + placed_[i].entry.name +
                                           "\" starts inside of \"" + placed_[i - 1].entry.name +
                                           "\"");
    }
    return Status::Ok();
  }

  const std::span<const std::byte> archive_;
  const FetchBytes& fetch_;
  Directory directory_;
  std::set<std::string> names_;
  std::vector<Placed> placed_;
};

}  // namespace

bool LooksLikeZip(std::span<const std::byte> start) {
  return start.size() >= 4 && LoadU32(start) == kLocalMagic;
}

Result<std::vector<ZipEntry>> ParseZip(std::span<const std::byte> archive,
                                       const FetchBytes& fetch) {
  return ZipReader(archive, fetch).Read();
}

}  // namespace varve::internal::formats
