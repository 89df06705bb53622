// SPDX-License-Identifier: Apache-2.0
//
// What lies in an object store for one varve store (docs/format.md, "In an object store"). Plain
// structs and their texts. No I/O. Stateless.
//
// One chain of small records, state-1, state-2, ..., says everything: each holds the whole state.
// The newest counts, and the next is created only by who has read it. So every change is decided
// by one creation. A snapshot's body lies in a blob and lists the files of the store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/format/format_file.h"
#include "varve/result.h"

namespace varve::internal {

// A part of a blob.
struct BlobRange {
  std::string blob;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Digest digest;  // with seed 0
  bool operator==(const BlobRange&) const = default;
};

struct RemoteSnapshot {
  uint64_t number = 0;
  uint64_t created_us = 0;   // by the clock of the host that pushed it, for people
  uint64_t total_bytes = 0;  // of its table files
  BlobRange body;
  bool operator==(const RemoteSnapshot&) const = default;
};

// One try to push. Its blobs are kept while it is open. Once closed, it is never opened again.
struct RemoteAttempt {
  uint64_t id = 0;    // random
  std::string owner;  // who makes it (store/remote/owner.h)
  bool operator==(const RemoteAttempt&) const = default;
};

struct RemoteState {
  uint64_t number = 0;  // 0 = there is none yet
  Digest store_id;
  uint64_t next_snapshot = 1;
  uint64_t fence = 0;                     // grows with each collection (reclaim_remote.cc says why)
  std::vector<RemoteSnapshot> snapshots;  // rising
  std::vector<RemoteAttempt> open;

  bool IsOpen(uint64_t attempt) const;
  const RemoteSnapshot* Find(uint64_t snapshot) const;  // nullptr = it is not there
};

// Returns "state-00000000000000000012".
std::string StateName(uint64_t number);
// Returns nullopt when it is no such name.
std::optional<uint64_t> ParseStateName(std::string_view name);
inline constexpr std::string_view kStatePrefix = "state-";

// Returns "seen-00000000000000000012": the name of the note that state 12 counts.
std::string NoteName(uint64_t number);
// Returns nullopt when it is no such name.
std::optional<uint64_t> ParseNoteName(std::string_view name);
// One list finds states and notes, and no beats. There may be many of those.
inline constexpr std::string_view kStateAndNotePrefix = "s";

std::string EncodeRemoteState(const RemoteState& state);
// kCorruption says what is wrong. `where` names the record.
Result<RemoteState> DecodeRemoteState(std::string_view text, const std::string& where);

struct BodyTable {
  std::string name;      // 000012.sst
  std::string identity;  // equal for equal files only. A name may be used again by another host
  BlobRange where;
};

struct SnapshotBody {
  FormatFile format;
  std::string manifest_name;
  std::string manifest;  // its bytes
  std::vector<BodyTable> tables;

  const BodyTable* FindIdentity(std::string_view identity) const;
};

std::string EncodeSnapshotBody(const SnapshotBody& body);
Result<SnapshotBody> DecodeSnapshotBody(std::string_view text, const std::string& where);

// The name of a blob: two digits that spread the names, the attempt that puts it, and what it is.
// `content` has letters and digits only.
std::string BlobName(uint64_t attempt, std::string_view content);
struct BlobNameParts {
  uint64_t attempt = 0;
  std::string content;
};
// Returns nullopt when varve does not make such names.
std::optional<BlobNameParts> ParseBlobName(std::string_view name);

}  // namespace varve::internal
