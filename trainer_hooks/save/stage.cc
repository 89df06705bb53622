// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/stage.h"

#include <algorithm>
#include <map>
#include <new>
#include <string_view>
#include <utility>

#include "base/digest.h"
#include "codec/planes/copy_kernel.h"
#include "store/save/save_session.h"
#include "store/shards/strides.h"

namespace varve::internal {

struct Stage::Memory {
  const StateTensor* tensor = nullptr;  // its first name
  bool is_listed = false;
  uint64_t bytes = 0;
  uint64_t chunk_bytes = 0;  // of every chunk but the last
  std::vector<Chunk> chunks;
  // For each name, its digests one step before; empty when it was not there.
  std::vector<std::vector<Digest>> parents;
  int64_t uses = 0;  // reads of each chunk by a save: one a name, one a tensor derived from it

  uint64_t ChunkBytes(uint64_t i) const { return std::min(chunk_bytes, bytes - i * chunk_bytes); }

  bool is_on_host() const { return tensor->device == kHost; }
  std::span<const std::byte> Bytes(uint64_t i) const {
    return {static_cast<const std::byte*>(tensor->data) + i * chunk_bytes, ChunkBytes(i)};
  }

  // The bytes of a chunk on the host where they lie, or gathered.
  std::span<const std::byte> Look(uint64_t i, std::vector<std::byte>* gathered) const {
    if (tensor->strides.empty()) return Bytes(i);
    const auto* data = static_cast<const std::byte*>(tensor->data);
    const auto element_bytes = static_cast<size_t>(DTypeBits(tensor->dtype)) / 8;
    gathered->resize(ChunkBytes(i));
    Strides(tensor->shape, tensor->strides)
        .Gather(data, element_bytes, static_cast<int64_t>(i * chunk_bytes / element_bytes),
                *gathered);
    return *gathered;
  }

  bool EqualsParents(uint64_t i, const Digest& digest) const {
    return std::all_of(parents.begin(), parents.end(), [&](const auto& digests) {
      return i < digests.size() && digests[i] == digest;
    });
  }
};

// One name of a staged tensor, as a save reads it.
class Stage::Source : public ChunkSource {
 public:
  Source(Stage* stage, Named* named) : stage_(stage), named_(named) {}

  void LearnParent(std::vector<Digest> digests) override {
    named_->memory->parents.push_back(std::move(digests));
  }
  std::optional<Digest> KnownDigest(uint64_t i) const override {
    const Chunk& c = chunk(i);
    return c.where == Where::kUnchanged ? std::optional(c.digest) : std::nullopt;
  }
  bool AreUnchanged() const override {
    return std::ranges::all_of(named_->memory->chunks,
                               [](const Chunk& c) { return c.where == Where::kUnchanged; });
  }
  Result<std::span<const std::byte>> Read(uint64_t i, std::vector<std::byte>* buffer) override {
    const Chunk& c = chunk(i);
    if (c.where == Where::kStaged) {
      return std::span<const std::byte>(c.copy, named_->memory->ChunkBytes(i));
    }
    if (c.where == Where::kLive) return ReadLive(i, buffer);
    return Status::NotFound("chunk " + std::to_string(i) +
                            " is that of the step before and was not staged");
  }
  Status Learn(uint64_t i, const Digest& digest) override {
    return digest == chunk(i).digest ? Status::Ok() : Changed(i);
  }
  void Done(uint64_t i) override { stage_->Done(*named_, i); }

 private:
  static Status Changed(uint64_t i) {
    return Status::FailedPrecondition(
        "chunk " + std::to_string(i) +
        " changed while it was staged: tensors must not change between BeginSave and AwaitStaged");
  }
  // A copy of the trainer's memory, so that what is digested is what is encoded.
  Result<std::span<const std::byte>> ReadLive(uint64_t i, std::vector<std::byte>* buffer) const {
    const Memory& memory = *named_->memory;
    if (memory.is_on_host()) {
      const std::span<const std::byte> bytes = memory.Look(i, buffer);
      if (bytes.data() != buffer->data()) buffer->assign(bytes.begin(), bytes.end());
    } else {
      buffer->resize(memory.ChunkBytes(i));
      VARVE_RETURN_IF_ERROR(
          stage_->devices_->Read({memory.tensor->device, memory.Bytes(i)}, *buffer));
    }
    if (ComputeDigest(stage_->digest_seed_, *buffer) != chunk(i).digest) return Changed(i);
    return std::span<const std::byte>(*buffer);
  }
  const Chunk& chunk(uint64_t i) const { return named_->memory->chunks[i]; }

  Stage* const stage_;
  Named* const named_;
};

Stage::Stage(StagingMemory* memory, DeviceTensorSource* devices)
    : memory_(memory), devices_(devices) {}

Stage::~Stage() = default;

CopyTraits Stage::Named::Traits() const {
  return {tensor->dtype, tensor->strides.empty(), memory->chunks.size()};
}

Status Stage::Add(std::shared_ptr<const SaveState> state) {
  state_ = std::move(state);
  const std::vector<StateTensor>& tensors = state_->state.tensors;
  named_.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    named_[i].tensor = &tensors[i];
    named_[i].shard = state_->shards[i];
    const size_t first = state_->firsts[i];
    if (first == i) VARVE_RETURN_IF_ERROR(AddMemory(tensors[i]));
    named_[i].memory = first == i ? &memories_.back() : named_[first].memory;
    ++named_[i].memory->uses;
  }
  LinkMasters();
  ListChunks();
  return Status::Ok();
}

Status Stage::BeginDigests(uint64_t seed, DeviceTensorSource::Trainer trainer) {
  digest_seed_ = seed;
  has_begun_digests_ = true;
  if (device_chunks_.empty()) return Status::Ok();
  return devices_->BeginDigests(seed, device_bytes_, std::move(trainer));
}

Status Stage::AddMemory(const StateTensor& tensor) {
  Memory& memory = memories_.emplace_back();
  memory.tensor = &tensor;
  VARVE_ASSIGN_OR_RETURN(memory.bytes, NumBytes(tensor.dtype, tensor.shape));
  memory.chunk_bytes =
      uint64_t{ElementsPerChunk(tensor.dtype)} * static_cast<uint64_t>(DTypeBits(tensor.dtype)) / 8;
  memory.chunks.resize((memory.bytes + memory.chunk_bytes - 1) / memory.chunk_bytes);
  return Status::Ok();
}

void Stage::LinkMasters() {
  std::map<std::pair<std::string_view, uint32_t>, Named*> by_name;  // and number
  for (Named& named : named_) {
    by_name.try_emplace({std::string_view(named.tensor->name), named.shard}, &named);
  }
  for (Named& named : named_) {
    if (named.tensor->derived_from.empty()) continue;
    const auto it = by_name.find({named.tensor->derived_from, named.shard});
    if (it == by_name.end() || !MayBeRoundedCopy(named.Traits(), it->second->Traits())) continue;
    named.copied_from = it->second;
    ++named.copied_from->memory->uses;
  }
}

// In the order in which a save reads them.
void Stage::ListChunks() {
  for (const Named* const named : MastersBeforeCopies<Named>(&named_)) {
    Memory* const memory = named->memory;
    if (std::exchange(memory->is_listed, true)) continue;
    auto& chunks = memory->is_on_host() ? chunks_ : device_chunks_;
    for (uint64_t i = 0; i < memory->chunks.size(); ++i) chunks.emplace_back(memory, i);
  }
  for (const auto& [memory, i] : device_chunks_) {
    device_bytes_.push_back({memory->tensor->device, memory->Bytes(i), i == 0});
  }
  are_devices_copied_ = device_chunks_.empty();
  not_copied_ = static_cast<int64_t>(chunks_.size());
  next_ = static_cast<int64_t>(chunks_.size());
}

void Stage::Work() {
  std::vector<std::byte> gathered;
  while (true) {
    const int64_t i = next_.fetch_sub(1) - 1;
    if (i < 0) return;
    const auto [memory, chunk] = chunks_[static_cast<size_t>(i)];
    try {
      if (!is_over_) Examine(memory, chunk, &gathered);
    } catch (const std::exception&) {
      is_out_of_memory_ = true;
    }
    if (not_copied_.fetch_sub(1) > 1) continue;
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
}

void Stage::Examine(Memory* memory, uint64_t i, std::vector<std::byte>* gathered) {
  Chunk& chunk = memory->chunks[i];
  const std::span<const std::byte> bytes = memory->Look(i, gathered);
  chunk.digest = ComputeDigest(digest_seed_, bytes);
  if (memory->EqualsParents(i, chunk.digest)) return;
  changed_bytes_ += bytes.size();
  const std::span<std::byte> copy = memory_->Take(bytes.size());
  if (copy.empty()) return LeaveLive(memory, i);
  CopyPastCache(bytes, copy);
  chunk.copy = copy.data();
  chunk.where = Where::kStaged;
  staged_bytes_ += bytes.size();
}

void Stage::LeaveLive(Memory* memory, uint64_t i) {
  memory->chunks[i].where = Where::kLive;
  const std::lock_guard lock(mutex_);
  live_uses_ += memory->uses;
}

Status Stage::CopyFromDevices() {
  if (device_chunks_.empty()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const Digest* const digests, devices_->TakeDigests());
  std::vector<size_t> changed;
  for (size_t i = 0; i < device_chunks_.size(); ++i) {
    const auto [memory, at] = device_chunks_[i];
    memory->chunks[at].digest = digests[i];
    if (memory->EqualsParents(at, digests[i])) continue;
    changed.push_back(i);
    changed_bytes_ += memory->ChunkBytes(at);
  }
  // In one piece, so that neighbours can be copied as one.
  size_t first = changed.size();
  std::byte* to = nullptr;
  uint64_t bytes = 0;
  do {  // until the host's tensors do not take of it meanwhile
    bytes = 0;
    first = FirstWithRoom(changed, &bytes);
    to = memory_->Take(bytes).data();
  } while (to == nullptr && bytes > 0);
  std::vector<DeviceTensorSource::Copy> copies;
  for (size_t i = 0; i < changed.size(); ++i) {
    const auto [memory, at] = device_chunks_[changed[i]];
    if (i < first) {
      LeaveLive(memory, at);
      continue;
    }
    copies.push_back({changed[i], to});
    memory->chunks[at].copy = to;
    memory->chunks[at].where = Where::kStaged;
    staged_bytes_ += memory->ChunkBytes(at);
    to += StagingMemory::Rounded(memory->ChunkBytes(at));
  }
  VARVE_ASSIGN_OR_RETURN(waited_bytes_, devices_->CopyToHost(copies));
  const std::lock_guard lock(mutex_);
  are_devices_copied_ = true;
  wake_.notify_all();
  return Status::Ok();
}

// The first of the last of these chunks that the memory has room for, and what they take.
size_t Stage::FirstWithRoom(const std::vector<size_t>& changed, uint64_t* bytes) const {
  const uint64_t room = memory_->room();
  for (size_t first = changed.size(); first > 0; --first) {
    const auto [memory, i] = device_chunks_[changed[first - 1]];
    const uint64_t more = StagingMemory::Rounded(memory->ChunkBytes(i));
    if (*bytes + more > room) return first;
    *bytes += more;
  }
  return 0;
}

Status Stage::AwaitCopied() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return not_copied_ == 0 && are_devices_copied_; });
  if (!is_out_of_memory_) return Status::Ok();
  return Status::Unavailable("there is no memory to gather a chunk of a tensor with strides");
}

Status Stage::AwaitArrived() {
  return device_chunks_.empty() ? Status::Ok() : devices_->AwaitCopies();
}

Status Stage::PutInto(SaveSession* session) {
  for (Named& named : named_) {
    const std::shared_ptr<const TensorSpec> spec(state_, named.tensor);
    VARVE_RETURN_IF_ERROR(
        session->PutSource(spec, named.shard, std::make_unique<Source>(this, &named)));
  }
  return Status::Ok();
}

void Stage::Done(const Named& named, uint64_t i) {
  int64_t uses = named.memory->chunks[i].where == Where::kLive ? 1 : 0;
  const Named* const master = named.copied_from;
  if (master != nullptr && master->memory->chunks[i].where == Where::kLive) ++uses;
  if (uses == 0) return;
  const std::lock_guard lock(mutex_);
  live_uses_ -= uses;
  if (live_uses_ <= 0) wake_.notify_all();
}

void Stage::AwaitReleased() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return is_over_ || live_uses_ <= 0; });
}

void Stage::ReleaseAll() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  are_devices_copied_ = true;
  wake_.notify_all();
}

}  // namespace varve::internal
