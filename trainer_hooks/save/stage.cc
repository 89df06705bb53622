// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/stage.h"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

#include "base/digest.h"
#include "codec/planes/copy_kernel.h"
#include "store/shards/gather.h"
#include "trainer_hooks/state/state_shards.h"

namespace varve {

struct Stage::Memory {
  StateTensor tensor;  // of its first name; strides are empty when dense
  uint64_t bytes = 0;
  uint64_t chunk_bytes = 0;  // of every chunk but the last
  std::vector<Chunk> chunks;
  // For each name, its digests one step before; empty when it was not there.
  std::vector<std::vector<Digest>> parents;
  int64_t uses = 0;  // reads of each chunk by a save: one a name, one a tensor derived from it

  uint64_t ChunkBytes(uint64_t i) const { return std::min(chunk_bytes, bytes - i * chunk_bytes); }

  bool is_on_host() const { return tensor.device == kHost; }
  std::span<const std::byte> Bytes(uint64_t i) const {
    return {static_cast<const std::byte*>(tensor.data) + i * chunk_bytes, ChunkBytes(i)};
  }

  // The bytes of a chunk on the host where they lie, or gathered.
  std::span<const std::byte> Look(uint64_t i, std::vector<std::byte>* gathered) const {
    if (tensor.strides.empty()) return Bytes(i);
    const auto* data = static_cast<const std::byte*>(tensor.data);
    const uint64_t size = ChunkBytes(i);
    const auto element_bytes = static_cast<size_t>(DTypeBits(tensor.dtype)) / 8;
    gathered->resize(size);
    Gather(tensor.shape, tensor.strides, data, i * chunk_bytes / element_bytes,
           size / element_bytes, element_bytes, gathered->data());
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
  Source(Stage* stage, const Named* named) : stage_(stage), named_(named) {}

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
          stage_->devices_->Read({memory.tensor.device, memory.Bytes(i)}, *buffer));
    }
    if (ComputeDigest(stage_->digest_seed_, *buffer) != chunk(i).digest) return Changed(i);
    return std::span<const std::byte>(*buffer);
  }
  const Chunk& chunk(uint64_t i) const { return named_->memory->chunks[i]; }

  Stage* const stage_;
  const Named* const named_;
};

Stage::Stage(StagingMemory* memory, DeviceTensorSource* devices)
    : memory_(memory), devices_(devices) {}

Stage::~Stage() = default;

Status Stage::Add(const std::vector<StateTensor>& tensors) {
  const std::vector<uint32_t> shards = NumberShards(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    VARVE_RETURN_IF_ERROR(AddTensor(tensors[i], shards[i]));
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

Status Stage::LearnParents(SourceWriter* writer) {
  writer->FindParents();
  for (const auto& named : named_) {
    VARVE_ASSIGN_OR_RETURN(auto digests, writer->ParentDigests(named->tensor.name, named->shard));
    named->memory->parents.push_back(std::move(digests));
  }
  return Status::Ok();
}

Status Stage::AddTensor(const StateTensor& tensor, uint32_t shard) {
  auto named = std::make_unique<Named>();
  named->tensor = tensor;
  named->shard = shard;
  if (IsDense(tensor.shape, tensor.strides)) named->tensor.strides.clear();
  if (Memory* const tied = FindTied(named->tensor); tied != nullptr) {
    named->memory = tied;
    named->alias_of = tied->tensor.name;
  } else {
    auto memory = std::make_unique<Memory>();
    memory->tensor = named->tensor;
    VARVE_ASSIGN_OR_RETURN(memory->bytes, NumBytes(tensor.dtype, tensor.shape));
    memory->chunk_bytes = uint64_t{ElementsPerChunk(tensor.dtype)} *
                          static_cast<uint64_t>(DTypeBits(tensor.dtype)) / 8;
    memory->chunks.resize((memory->bytes + memory->chunk_bytes - 1) / memory->chunk_bytes);
    named->memory = memory.get();
    if (memory->bytes > 0) by_data_.emplace(tensor.data, memory.get());
    memories_.push_back(std::move(memory));
  }
  ++named->memory->uses;
  by_name_[{named->tensor.name, shard}] = named.get();
  named_.push_back(std::move(named));
  return Status::Ok();
}

Stage::Memory* Stage::FindTied(const StateTensor& tensor) const {
  const auto [begin, end] = by_data_.equal_range(tensor.data);
  const auto it = std::find_if(begin, end, [&](const auto& entry) {
    const StateTensor& t = entry.second->tensor;
    return t.dtype == tensor.dtype && t.shape == tensor.shape && t.strides == tensor.strides &&
           t.layout == tensor.layout && t.device == tensor.device;
  });
  return it == end ? nullptr : it->second;
}

void Stage::LinkMasters() {
  for (const auto& named : named_) {
    const auto it = by_name_.find({named->tensor.derived_from, named->shard});
    if (it == by_name_.end()) continue;
    Memory* const master = it->second->memory;
    if (master == named->memory || master->chunks.size() != named->memory->chunks.size()) continue;
    named->master = master;
    ++master->uses;
  }
}

// In the order in which a save reads them: what is derived right behind its master.
void Stage::ListChunks() {
  std::map<const Memory*, std::pair<size_t, bool>> places;
  for (size_t i = 0; i < memories_.size(); ++i) places[memories_[i].get()] = {i, false};
  for (const auto& named : named_) {
    if (named->master != nullptr) places[named->memory] = {places[named->master].first, true};
  }
  std::vector<Memory*> order;
  for (const auto& memory : memories_) order.push_back(memory.get());
  std::stable_sort(order.begin(), order.end(),
                   [&](const Memory* a, const Memory* b) { return places[a] < places[b]; });
  for (Memory* const memory : order) {
    auto& chunks = memory->is_on_host() ? chunks_ : device_chunks_;
    for (uint64_t i = 0; i < memory->chunks.size(); ++i) chunks.emplace_back(memory, i);
  }
  for (const auto& [memory, i] : device_chunks_) {
    device_bytes_.push_back({memory->tensor.device, memory->Bytes(i), i == 0});
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

Status Stage::PutInto(SourceWriter* writer) {
  for (const auto& named : named_) {
    TensorView view = named->tensor.View();
    view.alias_of = named->alias_of;
    view.shard = named->shard;
    VARVE_RETURN_IF_ERROR(writer->PutSource(view, std::make_shared<Source>(this, named.get())));
  }
  return Status::Ok();
}

void Stage::Done(const Named& named, uint64_t i) {
  int64_t uses = named.memory->chunks[i].where == Where::kLive ? 1 : 0;
  if (named.master != nullptr && named.master->chunks[i].where == Where::kLive) ++uses;
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

}  // namespace varve
