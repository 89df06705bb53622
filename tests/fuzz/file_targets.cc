// SPDX-License-Identifier: Apache-2.0
//
// Small files of a store and of a group, and the log of a group. Where a checksum guards the bytes,
// the target makes it right, because no mutation would ever do so.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/digest.h"
#include "base/util.h"
#include "store/db/sealed_manifest.h"
#include "store/format/fixed_file.h"
#include "store/format/format_file.h"
#include "store/format/group_file.h"
#include "store/group/group_log.h"
#include "store/group/group_record.h"
#include "store/group/posix_record_log.h"
#include "store/group/slot.h"
#include "tests/fuzz/targets.h"

// GCC 12 sees the strings of a variant's other members being destroyed (its bug 105562).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace varve::internal::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 3;  // of the group, whose records are checked with it
constexpr size_t kRecordHeaderBytes = 24;
const Author kAuthor{4, 1, 77};

// Writes the bytes as a file, and returns its path.
fs::path Written(std::string_view bytes) {
  const fs::path path = ScratchFolder() / "file";
  WriteFile(path, bytes);
  return path;
}

// The first byte says whether the checksum of the others is made right.
std::string WithChecksum(std::span<const std::byte> input) {
  constexpr size_t kChecksumBytes = 8;
  std::string file(AsString(input.subspan(1)));
  if ((std::to_integer<int>(input[0]) & 1) != 0 && file.size() >= kChecksumBytes) {
    const size_t at = file.size() - kChecksumBytes;
    const uint64_t sum = ComputeDigest(0, AsBytes(file.substr(0, at))).lo;
    for (size_t i = 0; i < kChecksumBytes; ++i) file[at + i] = static_cast<char>(sum >> (8 * i));
  }
  return file;
}

void ReadFixed(std::span<const std::byte> input) {
  constexpr std::string_view kMagic = "varvem\n\x1a";
  constexpr size_t kNumFields = 2;
  if (input.empty()) return;
  const std::string file = WithChecksum(input);
  const auto read = ReadFixedFile(Written(file), kMagic, 1, kNumFields);
  if (!read.ok() || read->version > 1) return;
  Require(read->fields.size() == kNumFields);
  Require(EncodeFixedFile(kMagic, *read).size() == file.size());
}

// What a writer may use, a reader may use, too.
void ReadFormat(std::span<const std::byte> input) {
  if (input.empty()) return;
  WriteFile(ScratchFolder() / kFormatFileName, WithChecksum(input));
  const auto read = ReadFormatFile(ScratchFolder(), /*for_writing=*/false);
  const auto for_writing = ReadFormatFile(ScratchFolder(), /*for_writing=*/true);
  Require(read.ok() || !for_writing.ok());
  if (!read.ok()) return;
  Require(WriteFormatFile(ScratchFolder(), *read).ok());
  const auto again = ReadFormatFile(ScratchFolder(), false);
  Require(
      again.ok() && again->store_id == read->store_id && again->digest_seed == read->digest_seed &&
      again->read_compatible == read->read_compatible && again->incompatible == read->incompatible);
}

void ReadGroup(std::span<const std::byte> input) {
  if (input.empty()) return;
  WriteFile(ScratchFolder() / kGroupFileName, WithChecksum(input));
  const auto read = ReadGroupFile(ScratchFolder());
  if (!read.ok()) return;
  Require(UpgradeGroupFile(ScratchFolder(), *read).ok());
  const auto again = ReadGroupFile(ScratchFolder());
  Require(again.ok() && again->version == kGroupVersion && again->group_id == read->group_id &&
          again->digest_seed == read->digest_seed);
}

void ReadSealFile(std::span<const std::byte> input) {
  const auto seals = ReadSeals(Written(AsString(input)));
  if (seals.ok()) Require(seals->size() <= 2);
}

// Puts a header before what follows it in record `number`. A slot's number is its nonce.
std::string WithHeader(uint64_t number, std::string_view payload) {
  const Digest digest = ComputeDigest(kSeed ^ number, AsBytes(payload));
  std::string bytes = "varvel\n\x1a";
  for (const uint64_t half : {digest.lo, digest.hi}) {
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(half >> (8 * i));
  }
  Require(bytes.size() == kRecordHeaderBytes);
  return bytes.append(payload);
}

void ReadGroupRecord(std::span<const std::byte> input) {
  constexpr uint64_t kNumber = 9;
  const std::string bytes = WithHeader(kNumber, AsString(input));
  const ExactBytes exact(AsBytes(bytes));
  const auto record = DecodeGroupRecord(kSeed, kNumber, exact.text());
  if (!record.ok()) return;
  const std::string once = EncodeGroupRecord(kSeed, kNumber, *record);
  const auto again = DecodeGroupRecord(kSeed, kNumber, once);
  Require(again.ok() && again->body.index() == record->body.index());
}

std::unique_ptr<RecordLog> EmptyLog() {
  const fs::path folder = ScratchFolder() / "log";
  fs::remove_all(folder);
  fs::create_directories(folder);
  return MakePosixRecordLog(folder);
}

// Only a part that the rank's own member wrote for this very attempt counts.
void ReadGroupSlot(std::span<const std::byte> input) {
  const SlotKey key{.seed = kSeed, .attempt = 5, .nonce = 9};
  const auto log = EmptyLog();
  const std::string bytes = WithHeader(key.nonce, AsString(input));
  Require(log->Put(SlotName(kAuthor.member), bytes, /*durable=*/false).ok());
  const auto part = ReadSlot(*log, key, kAuthor);
  Require(part.ok());
  if (!part->has_value()) return;
  Require((*part)->member == kAuthor.member);
  Require(WriteSlot(log.get(), key, kAuthor, **part).ok());
  const auto again = ReadSlot(*log, key, kAuthor);
  Require(again.ok() && again->has_value() && (*again)->root == (*part)->root);
}

// The first byte is the size of log/newest, which comes next. Then come records, each behind two
// bytes for its size.
void ReadGroupLog(std::span<const std::byte> input) {
  if (input.empty()) return;
  std::string_view rest = AsString(input);
  const auto take = [&](size_t bytes) {
    const std::string_view taken = rest.substr(0, bytes);
    rest.remove_prefix(taken.size());
    return taken;
  };
  const auto byte = [](char c) { return static_cast<size_t>(static_cast<unsigned char>(c)); };
  auto log = EmptyLog();
  Require(log->Put("newest", take(byte(take(1)[0])), /*durable=*/false).ok());
  uint64_t number = 0;
  while (rest.size() >= 2) {
    const std::string_view size = take(2);
    ++number;
    Require(log->Create(number, WithHeader(number, take(byte(size[0]) | byte(size[1]) << 8))).ok());
  }
  GroupLog group(std::move(log), kSeed, [](std::chrono::milliseconds) {});
  if (!group.Refresh().ok()) return;
  // All records count, or the last of them would be lost without a word.
  group.With([&](const GroupState& state) { Require(state.next == number + 1); });
}

template <typename Record>
std::string Payload(const Record& record, uint64_t number = 9) {
  return EncodeGroupRecord(kSeed, number, {kAuthor, record}).substr(kRecordHeaderBytes);
}

std::vector<std::string> GroupSeeds() {
  const NamedAttempt step{{"main", 10}, 5};
  const GroupPart part{77, {1, 2}, 3, 4, 5, 6, {7, 8}};
  CommitRecord gathered{5, {1, 2}, -3, {{"loss", 0.5}}, {"best one"}};
  gathered.gathered = {.members = {8, 9}, .totals = {1, 2, 3, 4}};
  GroupState state;
  state.version = kGroupVersion;
  state.epoch = 1;
  state.num_ranks = 2;
  state.next_attempt = 6;
  state.members = {{8, {"host", 1, 0}}, {9, {"host", 1, 1}}};
  state.ranks = {{0, 8}, {1, 9}};
  GroupAttempt& committed = state.attempts[5];
  committed.committed = true;
  committed.id = step.id;
  committed.crew.members =
      std::make_shared<const std::vector<MemberId>>(std::vector<MemberId>{8, 9});
  committed.crew_totals = {1, 2, 3, 4};
  state.runs["main"].steps[10] = {5, {}, {{"loss", 0.5}}};
  state.pins[7] = {5, 100};
  return {Payload(EpochRecord{3, 4, 5}),
          Payload(OwnRecord{"host"}),
          Payload(BeginRecord{5, 6, {"main", 10}, 4, OnExisting::kFork}),
          Payload(PreparedRecord{5, part}),
          Payload(gathered),
          Payload(AbortRecord{5, StatusCode::kIOError, "disk"}),
          Payload(DropRecord{{step, step}}),
          Payload(TagRecord{step, "t"}),
          Payload(MetricsRecord{step, {{"a", 1}}}),
          Payload(ForkRecord{step, "x"}),
          Payload(PinRecord{1, 2, 3}),
          Payload(RemoveMemberRecord{9}),
          Payload(SnapshotRecord{nullptr, {5, 6}}),
          Payload(SnapshotRecord{std::make_shared<const GroupState>(state), {}})};
}

std::vector<std::string> SlotSeeds() {
  const GroupPart part{77, {1, 2}, 3, 4, 5, 6, {7, 8}}, of_others{78, {1, 2}, 3, 4, 5, 6, {7, 8}};
  return {Payload(PreparedRecord{5, part}), Payload(PreparedRecord{5, of_others}),
          Payload(PreparedRecord{4, part}), Payload(AbortRecord{5, StatusCode::kIOError, "disk"})};
}

std::vector<std::string> LogSeeds() {
  const NamedAttempt step{{"main", 10}, 5};
  std::string log("\0", 1);
  uint64_t number = 0;
  const auto append = [&](const auto& record) {
    const std::string payload = Payload(record, ++number);
    log += static_cast<char>(payload.size());
    log += static_cast<char>(payload.size() >> 8);
    log += payload;
  };
  append(EpochRecord{3, 4, 5});
  append(OwnRecord{"host"});
  append(BeginRecord{5, 6, {"main", 10}, 4, OnExisting::kFork});
  append(CommitRecord{5, {1, 2}, -3, {{"loss", 0.5}}, {"best one"}});
  append(TagRecord{step, "t"});
  append(DropRecord{{step}});
  const std::string digits = "00000000000000000001";
  const std::string note = digits + " " + ToHex(ComputeDigest(kSeed, AsBytes(digits))) + "\n";
  return {log, static_cast<char>(note.size()) + note + log.substr(1)};
}

std::vector<std::string> FixedSeeds(std::string_view magic, uint32_t version,
                                    const std::vector<uint64_t>& fields) {
  const std::string file = EncodeFixedFile(magic, {version, fields});
  return {"\x01" + file, std::string("\0", 1) + file};
}

std::vector<std::string> GoldenSeeds(const char* name) {
  const std::string file = ReadGolden(name);
  return {"\x01" + file, std::string("\0", 1) + file};
}

}  // namespace

std::vector<FuzzTarget> FileTargets() {
  return {{"fixed_file", ReadFixed, FixedSeeds("varvem\n\x1a", 1, {12, 345})},
          {"format_file", ReadFormat, GoldenSeeds("store_rans/FORMAT")},
          {"group_file", ReadGroup, GoldenSeeds("group/GROUP")},
          {"seal_file", ReadSealFile, {ReadGolden("store_sealed/seal/MANIFEST-000005")}},
          {"group_record", ReadGroupRecord, GroupSeeds()},
          {"group_slot", ReadGroupSlot, SlotSeeds()},
          {"group_log", ReadGroupLog, LogSeeds()}};
}

}  // namespace varve::internal::fuzz
