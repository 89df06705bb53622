// SPDX-License-Identifier: Apache-2.0
//
// Reads chunks, in parallel, and copies what is wanted of each to its place in the caller's
// buffers. Which chunks these are has been decided before (checkpoint_reader.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/db/chunk_reader.h"
#include "store/format/record.h"
#include "store/shards/overlap.h"
#include "varve/checkpoint.h"

namespace varve::internal {

// The part of a request that one shard gives.
struct ReadPart {
  const ReadRequest* request;
  TensorRecord record;
  Overlap overlap;    // of the shard and what is asked for
  std::string where;  // for messages: the tensor and its step
};

// One chunk to read. Some of its elements are wanted.
struct ChunkJob {
  const ReadPart* part = nullptr;
  uint64_t chunk = 0;
  ChunkRef ref;

  Range Elements() const {
    const auto n = static_cast<int64_t>(part->record.elements_per_chunk);
    const auto i = static_cast<int64_t>(chunk);
    return {i * n, (i + 1) * n};
  }
};

// Runs jobs in any order, on at most `num_threads` threads. The parts outlive the call. If a job
// fails, it returns the error of one that did, and the buffers of the requests hold anything.
// kCorruption: a chunk is missing, or differs from what was written. kAborted: the caller has a
// StopScope, and its flag is set.
Status RunChunkJobs(std::vector<ChunkJob> jobs, const ChunkReader& reader, int num_threads);

}  // namespace varve::internal
