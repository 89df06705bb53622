// SPDX-License-Identifier: Apache-2.0
//
// The only place where a key of the database is built or parsed. docs/format.md draws each key.
// Integers are big-endian, so that keys sort as their numbers do. All functions are stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "codec/frame.h"

namespace varve::internal {

// The column families, in the order of Database's handles. The names are stored.
enum class Family : int {
  kMeta,
  kSteps,
  kState,
  kTensors,
  kLists,
  kChunks,
  kBirths,
  kCounts,
  kIndex,
};
inline constexpr int kNumFamilies = 9;
inline constexpr std::string_view kFamilyNames[kNumFamilies] = {
    "meta", "steps", "state", "tensors", "lists", "chunks", "births", "counts", "index"};

// Chunks and lists are counted in blocks of this many.
inline constexpr uint32_t kCountsPerBlock = 4096;
// The most chunks that a list names.
inline constexpr uint32_t kChunksPerList = 4096;

// Names a run inside keys. It is never reused, so renaming or dropping a run touches one key.
using RunId = uint32_t;

struct StepKey {
  RunId run = 0;
  uint64_t step = 0;
  auto operator<=>(const StepKey&) const = default;
};

struct ListAddress {
  uint64_t save_id = 0;
  uint32_t number = 0;
  auto operator<=>(const ListAddress&) const = default;
};

enum class Counted : uint8_t { kChunk = 0, kList = 1 };

namespace keys {

// meta
inline constexpr std::string_view kNextBirth = "next_birth";
inline constexpr std::string_view kNextRun = "next_run";
std::string Run(std::string_view name);            // 'r' name
std::string Tag(RunId run, std::string_view tag);  // 't' run tag
std::string TagPrefix(RunId run);
inline constexpr std::string_view kRunPrefix = "r";
std::optional<std::string_view> ParseRun(std::string_view key);
std::optional<std::string_view> ParseTag(std::string_view key);  // the tag's name

// family steps. The key is also the prefix of the step's keys in state and tensors
std::string Step(StepKey step);
std::string RunPrefix(RunId run);
std::optional<StepKey> ParseStep(std::string_view key);

// state
std::string TrainerProgress(StepKey step);
std::string Topology(StepKey step);
std::string Item(StepKey step, std::string_view name);
std::string ItemPrefix(StepKey step);
std::optional<std::string_view> ParseItem(std::string_view key);  // the item's name

// tensors
std::string Tensor(StepKey step, std::string_view name, uint32_t shard);
std::string TensorPrefix(StepKey step, std::string_view name);  // of all shards
struct ParsedTensor {
  StepKey step;
  std::string_view name;  // into the key
  uint32_t shard = 0;
};
std::optional<ParsedTensor> ParseTensor(std::string_view key);

// lists, chunks, saves, counts, index
std::string List(ListAddress list);
std::optional<ListAddress> ParseList(std::string_view key);
std::string Chunk(ChunkAddress chunk);
std::optional<ChunkAddress> ParseChunk(std::string_view key);
std::string Save(uint64_t save_id);
std::string SaveBlock(uint64_t save_id, uint32_t block);
struct ParsedSave {
  uint64_t save_id = 0;
  std::optional<uint32_t> block;  // set for the key of a SaveBlock
};
std::optional<ParsedSave> ParseSave(std::string_view key);
std::string Counts(uint64_t save_id, Counted kind, uint32_t block);
struct ParsedCounts {
  uint64_t save_id = 0;
  Counted kind = Counted::kChunk;
  uint32_t block = 0;
};
std::optional<ParsedCounts> ParseCounts(std::string_view key);
std::string Index(const Digest& digest);
void AppendIndex(const Digest& digest, std::string* out);

// Returns the smallest key above every key that starts with `prefix`. Empty = none.
std::string PrefixEnd(std::string_view prefix);

}  // namespace keys

// Fixed-size values: a number (8 bytes), and an address in `index` (12 bytes), big-endian.
std::string EncodeNumber(uint64_t value);
std::optional<uint64_t> DecodeNumber(std::string_view value);
std::string EncodeAddress(ChunkAddress address);
std::optional<ChunkAddress> DecodeAddress(std::string_view value);

}  // namespace varve::internal
