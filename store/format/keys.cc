// SPDX-License-Identifier: Apache-2.0
#include "store/format/keys.h"

namespace varve::internal {

namespace {

template <typename T>
void Append(std::string* out, T value) {
  char bytes[sizeof(T)];
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes[i] = static_cast<char>(static_cast<uint8_t>(value >> (8 * (sizeof(T) - 1 - i))));
  }
  out->append(bytes, sizeof(T));
}

// Takes a big-endian number from the front of *in. The caller has checked the length.
template <typename T>
T Take(std::string_view* in) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>((value << 8) | static_cast<uint8_t>((*in)[i]));
  }
  in->remove_prefix(sizeof(T));
  return value;
}

constexpr size_t kStepKeyBytes = 12;
constexpr char kTrainerStateKind = 0;
constexpr char kTopologyKind = 1;
constexpr char kItemKind = 2;

std::string SaveIdAndNumber(uint64_t save_id, uint32_t number) {
  std::string key;
  Append(&key, save_id);
  Append(&key, number);
  return key;
}

}  // namespace

namespace keys {

std::string Run(std::string_view name) { return "r" + std::string(name); }

std::string TagPrefix(RunId run) {
  std::string key = "t";
  Append(&key, run);
  return key;
}

std::string Tag(RunId run, std::string_view tag) { return TagPrefix(run) + std::string(tag); }

std::optional<std::string_view> ParseRun(std::string_view key) {
  if (key.size() < 2 || key[0] != 'r') return std::nullopt;
  return key.substr(1);
}

std::optional<std::string_view> ParseTag(std::string_view key) {
  if (key.size() < 6 || key[0] != 't') return std::nullopt;
  return key.substr(5);
}

std::string Step(StepKey step) {
  std::string key = RunPrefix(step.run);
  Append(&key, step.step);
  return key;
}

std::string RunPrefix(RunId run) {
  std::string key;
  Append(&key, run);
  return key;
}

std::optional<StepKey> ParseStep(std::string_view key) {
  if (key.size() != kStepKeyBytes) return std::nullopt;
  StepKey step;
  step.run = Take<RunId>(&key);
  step.step = Take<uint64_t>(&key);
  return step;
}

std::string TrainerProgress(StepKey step) { return Step(step) + kTrainerStateKind; }
std::string Topology(StepKey step) { return Step(step) + kTopologyKind; }
std::string ItemPrefix(StepKey step) { return Step(step) + kItemKind; }
std::string Item(StepKey step, std::string_view name) {
  return ItemPrefix(step) + std::string(name);
}

std::optional<std::string_view> ParseItem(std::string_view key) {
  if (key.size() < kStepKeyBytes + 2 || key[kStepKeyBytes] != kItemKind) return std::nullopt;
  return key.substr(kStepKeyBytes + 1);
}

std::string TensorPrefix(StepKey step, std::string_view name) {
  std::string key;
  key.reserve(kStepKeyBytes + name.size() + 1 + sizeof(uint32_t));  // of Tensor
  Append(&key, step.run);
  Append(&key, step.step);
  key.append(name);
  key.push_back('\0');
  return key;
}

std::string Tensor(StepKey step, std::string_view name, uint32_t shard) {
  std::string key = TensorPrefix(step, name);
  Append(&key, shard);
  return key;
}

std::optional<ParsedTensor> ParseTensor(std::string_view key) {
  if (key.size() < kStepKeyBytes + 1 + 1 + sizeof(uint32_t)) return std::nullopt;
  ParsedTensor tensor;
  tensor.step = *ParseStep(key.substr(0, kStepKeyBytes));
  std::string_view shard = key.substr(key.size() - sizeof(uint32_t));
  tensor.shard = Take<uint32_t>(&shard);
  tensor.name = key.substr(kStepKeyBytes, key.size() - kStepKeyBytes - 1 - sizeof(uint32_t));
  if (key[kStepKeyBytes + tensor.name.size()] != '\0') return std::nullopt;
  return tensor;
}

std::string List(ListAddress list) { return SaveIdAndNumber(list.save_id, list.number); }
std::string Chunk(ChunkAddress chunk) { return SaveIdAndNumber(chunk.save_id, chunk.ordinal); }

std::optional<ListAddress> ParseList(std::string_view key) {
  if (key.size() != 12) return std::nullopt;
  ListAddress list;
  list.save_id = Take<uint64_t>(&key);
  list.number = Take<uint32_t>(&key);
  return list;
}

std::optional<ChunkAddress> ParseChunk(std::string_view key) { return DecodeAddress(key); }

std::string Save(uint64_t save_id) { return EncodeNumber(save_id); }
std::string SaveBlock(uint64_t save_id, uint32_t block) { return SaveIdAndNumber(save_id, block); }

std::optional<ParsedSave> ParseSave(std::string_view key) {
  if (key.size() != 8 && key.size() != 12) return std::nullopt;
  ParsedSave parsed;
  parsed.save_id = Take<uint64_t>(&key);
  if (!key.empty()) parsed.block = Take<uint32_t>(&key);
  return parsed;
}

std::string Counts(uint64_t save_id, Counted kind, uint32_t block) {
  std::string key;
  Append(&key, save_id);
  key.push_back(static_cast<char>(kind));
  Append(&key, block);
  return key;
}

std::optional<ParsedCounts> ParseCounts(std::string_view key) {
  if (key.size() != 13) return std::nullopt;
  ParsedCounts parsed;
  parsed.save_id = Take<uint64_t>(&key);
  const uint8_t kind = Take<uint8_t>(&key);
  if (kind > static_cast<uint8_t>(Counted::kList)) return std::nullopt;
  parsed.kind = static_cast<Counted>(kind);
  parsed.block = Take<uint32_t>(&key);
  return parsed;
}

std::string Index(const Digest& digest) {
  std::string key;
  AppendIndex(digest, &key);
  return key;
}

void AppendIndex(const Digest& digest, std::string* out) {
  Append(out, digest.hi);
  Append(out, digest.lo);
}

std::string PrefixEnd(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && static_cast<uint8_t>(end.back()) == 0xff) end.pop_back();
  if (!end.empty()) end.back() = static_cast<char>(static_cast<uint8_t>(end.back()) + 1);
  return end;
}

}  // namespace keys

std::string EncodeNumber(uint64_t value) {
  std::string out;
  Append(&out, value);
  return out;
}

std::optional<uint64_t> DecodeNumber(std::string_view value) {
  if (value.size() != 8) return std::nullopt;
  return Take<uint64_t>(&value);
}

std::string EncodeAddress(ChunkAddress address) {
  return SaveIdAndNumber(address.save_id, address.ordinal);
}

std::optional<ChunkAddress> DecodeAddress(std::string_view value) {
  if (value.size() != 12) return std::nullopt;
  ChunkAddress address;
  address.save_id = Take<uint64_t>(&value);
  address.ordinal = Take<uint32_t>(&value);
  return address;
}

}  // namespace varve::internal
