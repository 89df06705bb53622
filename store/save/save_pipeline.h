// SPDX-License-Identifier: Apache-2.0
//
// Makes lists of chunks, and files of new chunks, from tensors in memory. It digests, shares,
// encodes and writes on all cores, with a bounded number of chunks in flight. Small chunks go
// through the stages together. When the last chunk of a tensor has come through, only the tensor's
// lists are left. Nobody sees any of this before the commit (save_session.cc). Thread rule: one
// thread for each pipeline.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/stop.h"
#include "store/db/store_impl.h"
#include "store/format/record.h"
#include "store/save/chunk_files.h"
#include "store/save/chunk_source.h"
#include "store/save/packed_values.h"
#include "store/save/replayed_chunk.h"
#include "store/save/save_tensor.h"
#include "varve/checkpoint.h"

namespace varve::internal {

// Returns a warning: the tensor could not be compared with the step before.
std::string ParentWarning(std::string_view tensor, const Status& status);

struct SaveTotals {
  uint32_t chunks = 0;  // new frames
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
  PredictorTotals by_codec{};
  CoderTotals by_coder{};
};

class SavePipeline {
 public:
  SavePipeline(StoreImpl* store, uint64_t save_id, const SaveOptions& options);
  ~SavePipeline();

  // Fills `content` and `lists` of every tensor. `keep` keeps the lists. A derived tensor must come
  // after its master.
  Status Run(std::span<SaveTensor* const> tensors, SaveTensors* keep);

  const SaveTotals& totals() const { return totals_; }
  // The deltas and the planes of all new frames.
  const SaveBlock& frames() const { return frames_; }
  ChunkFiles* files() { return &files_; }
  // Returns what could not be read of the last step.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Every new frame, by ordinal.
  struct NewChunk {
    Digest digest;
    uint32_t raw_bytes = 0;
    uint32_t stored_bytes = 0;
    uint32_t num_refs = 0;  // of new lists
    Predictor predictor = Predictor::kRaw;
  };
  const std::vector<NewChunk>& new_chunks() const { return new_chunks_; }
  // Every new list, by number, encoded.
  const PackedValues& new_lists() const { return new_lists_; }
  // References of new lists to frames of earlier saves.
  const std::vector<ChunkRef>& old_refs() const { return old_refs_; }

 private:
  struct Piece;
  struct Job;
  struct Worker;
  class ParentLists;
  struct DigestHash {
    size_t operator()(const Digest& d) const { return static_cast<size_t>(d.lo); }
  };
  struct Placed {
    uint32_t ordinal = 0;
    uint32_t raw_bytes = 0;
    const SaveTensor* tensor = nullptr;
    uint64_t chunk = 0;
  };

  // The stages, in order. Serial ones run on one thread at a time, in the order of the chunks.
  Job* NextJob();                              // serial
  void Examine(Piece* piece, Worker* worker);  // parallel: digest; unchanged, literal, known or new
  void Place(Piece* piece);                    // serial: derived, repeated within the save, ordinal
  Job* Encode(Job* job, Worker* worker);       // parallel
  void Write(Piece* piece);                    // serial
  void NotePlanes(const ChunkRef& ref, const PlaneUses& uses);
  void Finish(Piece* piece);        // serial, after Write
  void Report(const Piece& piece);  // the same

  template <typename Stage>
  Job* ForEachPiece(Job* job, const Stage& stage);
  Job* TakeIdleJob();
  bool AddNextPieces(Job* job, ParentLists* lists);
  void AddPiece(SaveTensor* tensor, uint64_t chunk, Job* job, ParentLists* lists);
  bool IsUnchanged(const SaveTensor& tensor) const;
  void LoadParent(SaveTensor* tensor, ParentLists* lists);
  std::unique_ptr<SaveTensor::Flight> TakeFlight();
  Status FetchRaw(Piece* piece) const;
  bool SharesKnown(Piece* piece, Worker* worker);
  Result<bool> EqualsRoundedSource(const Piece& piece, Worker* worker) const;
  bool SharesParent(Piece* piece, Worker* worker);
  bool SharesIndexed(Piece* piece, Worker* worker);
  bool wants_bases() const {
    return compression_ == Compression::kAuto || compression_ == Compression::kMax;
  }
  bool SameBytes(const ChunkRef& ref, DType dtype, std::span<const std::byte> raw, Worker* worker);
  bool PinForSave(uint64_t save_id);
  bool PinSources(const FrameInfo& info);
  // Finds the frame at an address, and pins the frame's save until the end of this save.
  Result<FrameInfo> PinFrame(ChunkAddress address, rocksdb::PinnableSlice* frame);
  static bool EqualsPlaced(const SaveTensor& tensor, uint64_t chunk,
                           std::span<const std::byte> raw);
  void MakeLists(SaveTensor* tensor);
  ListAddress AddList(std::span<const ChunkRef> refs);
  void LetGo(SaveTensor* tensor);
  bool MayUseParent(const Piece& piece) const;
  void ReadReplayed(std::span<Piece> pieces, Worker* worker);
  void EncodePiece(Piece* piece, Worker* worker);
  Result<bool> EncodeInStep(EncodeInput input, Piece* piece, Worker* worker);
  Status EncodeAlone(EncodeInput input, Piece* piece, Worker* worker);
  BaseEdge EdgeOf(const Piece& piece, ChunkAddress source) const;
  void Fail(const Status& status);

  StoreImpl* const store_;
  const uint64_t save_id_;
  const bool verify_sharing_;
  const int num_threads_;
  const bool low_priority_;
  const Compression compression_;
  const bool from_keyframes_;
  const Progress progress_;
  const StopFlag stop_;
  ChunkFiles files_;

  std::span<SaveTensor* const> tensors_;
  SaveTensors* keep_ = nullptr;  // of Write
  size_t next_tensor_ = 0;       // of NextJob
  uint64_t next_chunk_ = 0;
  uint32_t next_ordinal_ = 0;                              // of Place
  std::unordered_map<Digest, Placed, DigestHash> placed_;  // of Place
  SaveTotals totals_;                                      // of Write
  SaveBlock frames_;
  std::vector<NewChunk> new_chunks_;
  PackedValues new_lists_;
  std::vector<ChunkRef> old_refs_;
  std::vector<ListAddress> lists_;  // of the tensor that is finished
  std::string digests_;             // the same
  uint64_t done_bytes_ = 0;         // of Report
  uint64_t total_bytes_ = 0;
  std::chrono::steady_clock::time_point reported_;
  std::vector<std::string> warnings_;  // of NextJob

  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Status error_;                            // guarded by mutex_
  std::set<uint64_t> pinned_saves_;         // guarded by mutex_
  std::vector<std::unique_ptr<Job>> jobs_;  // of NextJob
  std::vector<Job*> idle_;                  // guarded by mutex_: those with warm buffers
  std::vector<std::unique_ptr<SaveTensor::Flight>> flights_;  // guarded by mutex_: empty ones
};

}  // namespace varve::internal
