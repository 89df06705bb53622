// SPDX-License-Identifier: Apache-2.0
#include "store/save/replayed_chunk.h"

#include <algorithm>
#include <set>
#include <utility>

#include "store/save/base_choice.h"

namespace varve::internal {

namespace {

uint64_t BytesOf(const std::map<ChunkAddress, uint32_t>& frames) {
  uint64_t bytes = 0;
  for (const auto& [address, frame_bytes] : frames) bytes += frame_bytes;
  return bytes;
}

}  // namespace

Status ReplayedChunk::ReadBefore(const ChunkReader& reader, const AdamStep& step,
                                 const Parents& parents, const StoreOptions& options,
                                 ChunkScratch* scratch) {
  std::vector<FrameSource> chunks;
  std::vector<ChunkAddress> addresses;
  for (const ChunkRef* const parent : parents) {
    chunks.push_back({parent->address, parent->digest});
    addresses.push_back(parent->address);
  }
  const std::set<ChunkAddress> distinct(addresses.begin(), addresses.end());
  if (distinct.size() < addresses.size()) return Status::Ok();
  is_too_deep_ = true;  // also when there are more frames than a graph may have
  VARVE_ASSIGN_OR_RETURN(const FrameGraph graph, reader.FetchGraph(chunks));
  const auto depth_of = [&](size_t tensor) { return graph.InfoOf(addresses[tensor]).depth; };
  const uint32_t moment = depth_of(kMoment) + 1;
  const uint32_t square = std::max(moment, depth_of(kSquare)) + 1;
  const uint32_t weight = std::max(square, depth_of(kWeight)) + 1;
  is_too_deep_ = graph.is_large() || static_cast<int64_t>(weight) > options.max_replay_depth;
  if (is_too_deep_) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(std::vector<StoredChunk> stored, reader.Decode(graph, addresses, scratch));
  for (size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].info.raw_bytes == after_[i].base.raw.size()) continue;
    return Status::Corruption("a chunk has another size than its list says");
  }
  for (size_t i = 0; i < stored.size(); ++i) {
    ReplaySource& source = before_[i];
    source.frames = graph.FramesOf(stored[i].address);
    source.base = BaseOf(stored[i]);
    source.base.path_bytes = BytesOf(source.frames);
    source.is_long = IsLong(graph, stored[i].address, options);
  }
  stored_ = std::move(stored);
  recipe_ = FitAdam(step, StateOf(before_), StateOf(after_));
  return Status::Ok();
}

Status ReplayedChunk::SetFrame(size_t tensor, ChunkAddress address,
                               std::span<const std::byte> frame) {
  VARVE_ASSIGN_OR_RETURN(const FrameInfo info, ParseFrame(frame));
  ReplaySource& source = after_[tensor];
  source.frames.emplace(address, static_cast<uint32_t>(frame.size()));
  for (const FrameSource& used : info.sources()) {
    const auto is_used = [&](const ReplaySource& each) {
      return !each.frames.empty() && each.base.address == used.address;
    };
    auto found = std::ranges::find_if(before_, is_used);
    if (found == before_.end()) found = std::ranges::find_if(after_, is_used);
    if (found == after_.end()) {  // a keyframe further back: how to read it is not known here
      source.frames.clear();
      return Status::Ok();
    }
    source.frames.insert(found->frames.begin(), found->frames.end());
  }
  source.base.address = address;
  source.base.digest = info.digest;
  source.base.depth = info.depth;
  source.base.path_bytes = info.path_bytes;
  return Status::Ok();
}

std::optional<ReplayInput> ReplayedChunk::Replay(size_t tensor) {
  if (!has_before()) return std::nullopt;
  std::vector<const ReplaySource*> sources;
  ReplayInput replay;
  replay.replay.recipe = recipe_;
  switch (tensor) {
    case kMoment:
      if (!recipe_.has_bf16_gradient) return std::nullopt;
      replay.replay.target = ReplayTarget::kMoment;
      sources = {&before_[kMoment]};
      break;
    case kSquare:
      replay.replay.target = ReplayTarget::kSquare;
      sources = {&before_[kMoment], &after_[kMoment], &before_[kSquare]};
      break;
    default:
      replay.replay.target = ReplayTarget::kWeight;
      sources = {&after_[kMoment], &after_[kSquare], &before_[kWeight]};
  }
  std::map<ChunkAddress, uint32_t> frames;
  chosen_.clear();
  for (const ReplaySource* const source : sources) {
    if (source->frames.empty()) return std::nullopt;
    frames.insert(source->frames.begin(), source->frames.end());
    replay.depth = std::max(replay.depth, source->base.depth);
    chosen_.push_back(source->base);
  }
  replay.sources = chosen_;
  replay.path_bytes = BytesOf(frames);
  return replay;
}

}  // namespace varve::internal
