// SPDX-License-Identifier: Apache-2.0
//
// From tensors in memory to chunk references and files of new chunks: digest, share, encode, write,
// on all cores, with a bounded number of chunks in flight. Nothing here is visible to anybody; the
// commit is checkpoint_writer.cc's. Thread rule: one thread a pipeline.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/chunk_files.h"
#include "store/chunk_source.h"
#include "store/record.h"
#include "store/store_impl.h"
#include "varve/checkpoint.h"

namespace varve {

// A tensor on its way into the store.
struct SaveTensor {
  std::string name;
  uint32_t shard = 0;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // elements; empty = dense
  const std::byte* data = nullptr;
  std::shared_ptr<ChunkSource> chunks;  // set: the bytes come from here, not from `data`
  std::string derived_from;
  const SaveTensor* source = nullptr;  // of derived_from, when it can be one

  TensorRecord record;  // geometry is set before the pipeline runs, lists after it
  // The same tensor one step ago, when it was cut the same way and can be read.
  std::optional<TensorRecord> parent;
  std::vector<ChunkRef> parent_refs;
  std::vector<ChunkRef> refs;  // the result, one a chunk
};

// That a tensor could not be compared with the step before.
std::string ParentWarning(const std::string& tensor, const Status& status);

struct SaveTotals {
  uint32_t chunks = 0;  // new frames
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
  PredictorTotals by_codec{};
  CoderTotals by_coder{};
};

class SavePipeline {
 public:
  SavePipeline(StoreImpl* store, uint64_t birth, const SaveOptions& options);
  ~SavePipeline();

  // Fills `refs` of every tensor. A derived tensor must come after its source.
  Status Run(std::vector<std::unique_ptr<SaveTensor>>* tensors);

  const SaveTotals& totals() const { return totals_; }
  // The deltas and the planes of all new frames.
  const BirthBlock& frames() const { return frames_; }
  ChunkFiles* files() { return &files_; }
  // What could not be read of the last step.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Digest and address of every new frame, for the index.
  const std::vector<std::pair<Digest, uint32_t>>& new_chunks() const { return new_chunks_; }

 private:
  struct Job;
  struct Worker;
  struct DigestHash {
    size_t operator()(const Digest& d) const { return static_cast<size_t>(d.lo); }
  };

  // The stages, in order. Serial ones run on one thread at a time, in the order of the chunks.
  Job* NextJob();                            // serial
  void Examine(Job* job, Worker* worker);    // parallel: digest; unchanged, literal, known or new
  void Place(Job* job);                      // serial: derived, repeated within the save, ordinal
  void Encode(Job* job, Worker* worker);     // parallel
  void Write(Job* job);                      // serial
  void NotePlanes(const ChunkRef& ref, const PlaneUses& uses);
  void Report(const Job& job);               // serial, after Write

  void LoadParent(SaveTensor* tensor);
  Status FetchRaw(Job* job) const;
  bool SharesKnown(Job* job, Worker* worker);
  Result<bool> EqualsRoundedSource(const Job& job, Worker* worker) const;
  bool SharesParent(Job* job, Worker* worker);
  bool SharesIndexed(Job* job, Worker* worker);
  bool SameBytes(const ChunkRef& ref, DType dtype, std::span<const std::byte> raw, Worker* worker);
  bool PinForSave(uint64_t birth);
  // The frame at an address, its birth pinned until the end of the save.
  Result<FrameInfo> PinFrame(ChunkAddress address, rocksdb::PinnableSlice* frame);
  static bool EqualsPlaced(const SaveTensor& tensor, uint64_t chunk,
                           std::span<const std::byte> raw);
  void Fail(const Status& status);

  StoreImpl* const store_;
  const uint64_t birth_;
  const bool verify_sharing_;
  const int num_threads_;
  const bool low_priority_;
  const Codec codec_;
  const Progress progress_;
  ChunkFiles files_;

  std::vector<std::unique_ptr<SaveTensor>>* tensors_ = nullptr;
  size_t next_tensor_ = 0;  // of NextJob
  uint64_t next_chunk_ = 0;
  uint32_t next_ordinal_ = 0;  // of Place
  std::unordered_map<Digest, std::pair<SaveTensor*, uint64_t>, DigestHash> placed_;  // of Place
  SaveTotals totals_;                                                               // of Write
  BirthBlock frames_;
  uint64_t done_bytes_ = 0;                                                         // of Report
  uint64_t total_bytes_ = 0;
  std::chrono::steady_clock::time_point reported_;
  std::vector<std::pair<Digest, uint32_t>> new_chunks_;
  std::vector<std::string> warnings_;  // of NextJob

  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Status error_;                        // guarded by mutex_
  std::set<uint64_t> pinned_births_;    // guarded by mutex_
  std::vector<std::unique_ptr<Job>> jobs_;  // of NextJob
  std::vector<Job*> idle_;                  // guarded by mutex_: those with warm buffers
};

}  // namespace varve
