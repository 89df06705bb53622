// SPDX-License-Identifier: Apache-2.0
//
// What a step of an optimizer (replayed_step.h) makes of one chunk of each of its tensors, from the
// chunks one step ago. Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "codec/frame.h"
#include "store/db/chunk_reader.h"
#include "store/format/record.h"
#include "store/save/replayed_step.h"
#include "varve/options.h"

namespace varve::internal {

// A source of a frame, and all frames that reading it takes.
struct ReplaySource {
  FrameBase base;        // its path_bytes are those of `frames`
  bool is_long = false;  // its chain
  std::map<ChunkAddress, uint32_t> frames;
};

// Chunk i of the three tensors of a step, one step ago and now. Their order is that of kMoment,
// kSquare, kWeight.
class ReplayedChunk {
 public:
  static constexpr size_t kMoment = 0, kSquare = 1, kWeight = 2;
  // Of a weight upon chunks of depth 1. Its moments are 2 and 3 deep.
  static constexpr int kLeastDepth = 4;

  using Parents = std::array<const ChunkRef*, ReplayedStep::kNumTensors>;

  // Tells what is there now. The bytes must live as long as they are predicted from.
  void SetAfter(size_t tensor, std::span<const std::byte> raw) { after_[tensor].base.raw = raw; }
  // Reads the chunks of one step ago, which must be stored, and finds the recipe. Call it after
  // SetAfter. There is no replay if it would be deeper than the options let it, if two of the
  // chunks are one, or after an error.
  Status ReadBefore(const ChunkReader& reader, const AdamStep& step, const Parents& parents,
                    const StoreOptions& options, ChunkScratch* scratch);
  // Tells that the chunk is stored in a frame of this save, which may be a source now.
  Status SetFrame(size_t tensor, ChunkAddress address, std::span<const std::byte> frame);
  void Clear() { *this = {}; }

  bool has_before() const { return !stored_.empty(); }
  // True: the chains are as long as they may be, so all three must begin new ones. Else the chain
  // of one would stay long for the sake of another.
  bool is_too_deep() const { return is_too_deep_; }
  const FrameBase& before(size_t tensor) const { return before_[tensor].base; }
  // True: if the chunk is not replayed, try the keyframe of its chain (base_choice.h).
  bool is_long(size_t tensor) const { return before_[tensor].is_long; }
  std::span<const StoredChunk> stored() const { return stored_; }  // the same
  const AdamRecipe& recipe() const { return recipe_; }

  // A candidate for the frame of that tensor. Nothing: a source is missing. It is valid until the
  // next call of any function.
  std::optional<ReplayInput> Replay(size_t tensor);

 private:
  using Sources = std::array<ReplaySource, ReplayedStep::kNumTensors>;
  static AdamState StateOf(const Sources& sources) {
    return {sources[kMoment].base.raw, sources[kSquare].base.raw, sources[kWeight].base.raw};
  }

  AdamRecipe recipe_;
  bool is_too_deep_ = false;
  std::vector<StoredChunk> stored_;  // what before_ points into
  Sources before_, after_;           // those of after_ without frames are no sources
  std::vector<FrameBase> chosen_;    // what Replay returns
};

}  // namespace varve::internal
