// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/stage.h"

#include <algorithm>
#include <utility>

#include "base/digest.h"
#include "codec/planes/copy_kernel.h"
#include "store/save/save_session.h"

namespace varve::internal {

// One name of a staged tensor, as a save reads it.
class Stage::Source : public ChunkSource {
 public:
  Source(Stage* stage, const Named* named) : stage_(stage), named_(named) {}

  void LearnParent(std::vector<Digest>&& digests) override {
    stage_->parents_[stage_->layout_->IndexOf(*named_->memory)].push_back(std::move(digests));
  }
  std::optional<Digest> KnownDigest(uint64_t i) const override {
    if (chunk(i).where != Where::kUnchanged) return std::nullopt;
    return digest(i);
  }
  bool AreUnchanged() const override {
    const StageLayout::Memory& memory = *named_->memory;
    return std::ranges::all_of(
        std::span(stage_->chunks_).subspan(memory.first_chunk, memory.geometry.NumChunks()),
        [](const Chunk& c) { return c.where == Where::kUnchanged; });
  }
  Result<std::span<const std::byte>> Read(uint64_t i, std::vector<std::byte>* buffer) override {
    const Chunk& c = chunk(i);
    if (c.where == Where::kStaged) {
      return std::span<const std::byte>(c.copy, named_->memory->geometry.ChunkBytes(i));
    }
    if (c.where == Where::kLive) return ReadLive(i, buffer);
    return Status::NotFound("chunk " + std::to_string(i) +
                            " is that of the step before and was not staged");
  }
  Status Learn(uint64_t i, const Digest& found) override {
    return found == digest(i) ? Status::Ok() : Changed(i);
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
    const StageLayout::Memory& memory = *named_->memory;
    if (memory.is_on_host()) {
      const std::span<const std::byte> bytes = memory.Look(i, buffer);
      if (bytes.data() != buffer->data()) buffer->assign(bytes.begin(), bytes.end());
    } else {
      buffer->resize(memory.geometry.ChunkBytes(i));
      VARVE_RETURN_IF_ERROR(
          stage_->devices_->Read({memory.tensor->device, memory.Bytes(i)}, *buffer));
    }
    if (ComputeDigest(stage_->digest_seed_, *buffer) != digest(i)) return Changed(i);
    return std::span<const std::byte>(*buffer);
  }
  const Chunk& chunk(uint64_t i) const { return stage_->chunks_[named_->memory->first_chunk + i]; }
  const Digest& digest(uint64_t i) const {
    return stage_->digests_[named_->memory->first_chunk + i];
  }

  Stage* const stage_;
  const Named* const named_;
};

Stage::Stage(StagingMemory* memory, DeviceTensorSource* devices,
             std::shared_ptr<const StageLayout> layout)
    : memory_(memory),
      devices_(devices),
      layout_(std::move(layout)),
      next_(static_cast<int64_t>(on_host().size())),
      not_copied_(static_cast<int64_t>(on_host().size())),
      are_devices_copied_(!has_devices()) {}

Stage::~Stage() = default;

// The devices start before anything is allocated here.
Status Stage::BeginDigests(uint64_t seed, DeviceTensorSource::Trainer trainer) {
  digest_seed_ = seed;
  has_begun_digests_ = true;
  if (has_devices()) VARVE_RETURN_IF_ERROR(devices_->BeginDigests(seed, std::move(trainer)));
  digests_.resize(layout_->chunks().size());
  chunks_.resize(layout_->chunks().size());
  return Status::Ok();
}

bool Stage::EqualsParents(const Place& place, const Digest& digest) const {
  if (known_parents_ != nullptr) return (*known_parents_)[place.number()] == digest;
  return std::ranges::all_of(
      parents_[layout_->IndexOf(*place.memory)], [&](const std::vector<Digest>& digests) {
        return place.chunk < digests.size() && digests[place.chunk] == digest;
      });
}

void Stage::Work() {
  std::vector<std::byte> gathered;
  while (true) {
    const int64_t i = next_.fetch_sub(1) - 1;
    if (i < 0) return;
    try {
      if (!is_over_) Examine(on_host()[static_cast<size_t>(i)], &gathered);
    } catch (const std::exception&) {
      is_out_of_memory_ = true;
    }
    if (not_copied_.fetch_sub(1) > 1) continue;
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
}

void Stage::Examine(const Place& place, std::vector<std::byte>* gathered) {
  const std::span<const std::byte> bytes = place.memory->Look(place.chunk, gathered);
  const Digest digest = ComputeDigest(digest_seed_, bytes);
  digests_[place.number()] = digest;
  if (EqualsParents(place, digest)) return;
  changed_bytes_ += bytes.size();
  const std::span<std::byte> copy = memory_->Take(bytes.size());
  if (copy.empty()) return LeaveLive(place);
  CopyPastCache(bytes, copy);
  chunks_[place.number()] = {copy.data(), Where::kStaged};
  staged_bytes_ += bytes.size();
}

void Stage::LeaveLive(const Place& place) {
  chunks_[place.number()].where = Where::kLive;
  const std::lock_guard lock(mutex_);
  live_uses_ += place.memory->uses;
}

// What changed is copied as its digests arrive, when there is surely room for all that may change.
// Otherwise all digests are awaited, because the last chunks have the room.
Status Stage::CopyFromDevices() {
  if (!has_devices()) return Status::Ok();
  const std::span<const Place> places = layout_->chunks().first(layout_->num_on_devices());
  uint64_t unknown_bytes = 0;  // of chunks without a digest, and of those in `changed`
  for (const Place& place : places) unknown_bytes += StagingMemory::Rounded(place.bytes());
  std::vector<size_t> changed;  // that are not yet copied
  for (size_t have = 0; have < places.size();) {
    VARVE_ASSIGN_OR_RETURN(const std::span<const Digest> digests, devices_->TakeDigests(have));
    if (digests.size() <= have || digests.size() > places.size()) {
      return Status::FailedPrecondition("DeviceTensorSource::TakeDigests returned " +
                                        std::to_string(digests.size()) +
                                        " digests, expected more than " + std::to_string(have) +
                                        " and at most " + std::to_string(places.size()));
    }
    for (; have < digests.size(); ++have) {
      digests_[have] = digests[have];
      if (EqualsParents(places[have], digests[have])) {
        unknown_bytes -= StagingMemory::Rounded(places[have].bytes());
        continue;
      }
      changed.push_back(have);
      changed_bytes_ += places[have].bytes();
    }
    if (have < places.size() && unknown_bytes > memory_->room()) continue;
    VARVE_RETURN_IF_ERROR(CopyChanged(changed));
    for (const size_t i : changed) unknown_bytes -= StagingMemory::Rounded(places[i].bytes());
    changed.clear();
  }
  const std::lock_guard lock(mutex_);
  are_devices_copied_ = true;
  wake_.notify_all();
  return Status::Ok();
}

Status Stage::CopyChanged(const std::vector<size_t>& changed) {
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
  copies.reserve(changed.size());
  for (size_t i = 0; i < changed.size(); ++i) {
    const Place& place = layout_->chunks()[changed[i]];
    if (i < first) {
      LeaveLive(place);
      continue;
    }
    copies.push_back({changed[i], to});
    chunks_[changed[i]] = {to, Where::kStaged};
    staged_bytes_ += place.bytes();
    to += StagingMemory::Rounded(place.bytes());
  }
  VARVE_ASSIGN_OR_RETURN(const uint64_t waited, devices_->CopyToHost(copies));
  waited_bytes_ += waited;
  return Status::Ok();
}

// The first of the last of these chunks that the memory has room for, and what they take.
size_t Stage::FirstWithRoom(const std::vector<size_t>& changed, uint64_t* bytes) const {
  const uint64_t room = memory_->room();
  for (size_t first = changed.size(); first > 0; --first) {
    const uint64_t more = StagingMemory::Rounded(layout_->chunks()[changed[first - 1]].bytes());
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

Status Stage::AwaitArrived() { return has_devices() ? devices_->AwaitCopies() : Status::Ok(); }

Status Stage::PutInto(SaveSession* session) {
  parents_.resize(layout_->memories().size());
  for (const Named& named : layout_->named()) {
    const std::shared_ptr<const TensorSpec> spec(layout_->tensors(), named.tensor);
    VARVE_RETURN_IF_ERROR(
        session->PutSource(spec, named.shard, std::make_unique<Source>(this, &named)));
  }
  return Status::Ok();
}

void Stage::Done(const Named& named, uint64_t i) {
  const auto is_live = [&](const Named& of) {
    return chunks_[of.memory->first_chunk + i].where == Where::kLive;
  };
  int64_t uses = is_live(named) ? 1 : 0;
  const Named* const master = named.copied_from;
  if (master != nullptr && is_live(*master)) ++uses;
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
