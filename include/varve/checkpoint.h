// SPDX-License-Identifier: Apache-2.0
//
// Writing and reading one checkpoint: all state of a run at a step.
//
//   VARVE_ASSIGN_OR_RETURN(auto writer, store->Begin(/*step=*/100));  // SaveOptions{} = run "main"
//   VARVE_RETURN_IF_ERROR(writer->Put(
//       {.name = "wte", .dtype = varve::DType::kBF16, .shape = shape, .data = ptr}));
//   VARVE_RETURN_IF_ERROR(writer->Commit().status());  // durable when this returns ok
//
//   VARVE_ASSIGN_OR_RETURN(auto reader, store->OpenCheckpoint("main", 100));
//   VARVE_ASSIGN_OR_RETURN(const varve::TensorInfo wte, reader->Find("wte"));
//   std::vector<std::byte> out(wte.logical_bytes);
//   return reader->Read("wte", out);
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"
#include "varve/tensor.h"
#include "varve/trainer_progress.h"

namespace varve {

class ShardedReader;  // of varve itself

// A step of a run, by name.
struct CheckpointId {
  std::string run;
  uint64_t step = 0;
  bool operator==(const CheckpointId&) const = default;
};

// What the store knows of a checkpoint without reading any tensor.
struct CheckpointInfo {
  CheckpointId id;
  std::chrono::system_clock::time_point created;  // microseconds, UTC
  std::optional<CheckpointId> parent;             // the step it was saved against
  uint64_t num_tensors = 0;
  uint64_t logical_bytes = 0;  // raw bytes of all tensors as the trainer sees them
  uint64_t new_bytes = 0;      // raw bytes of chunks that were not in the store before
  uint64_t stored_bytes = 0;   // encoded bytes of those
  std::map<std::string, double> metrics;
  std::vector<std::string> tags;  // by name
};

// Bytes of chunks, by how their frames predict them ("raw", "keyframe", "delta", "scaled delta").
struct CodecUse {
  std::string codec;
  uint64_t num_chunks = 0;
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
};

// The same bytes by the coder of each plane ("raw", "zstd", "sparse", ...). "header" is what frames
// hold besides planes. "unknown" is the whole of each frame from a varve that did not count coders.
// All rows together are all bytes of the frames.
struct CoderUse {
  std::string coder;
  uint64_t num_planes = 0;
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
};

// What a Commit saved, and what it cost. Bytes are counted as in CheckpointInfo.
struct SaveReport {
  CheckpointId id;
  uint64_t num_tensors = 0;
  uint64_t logical_bytes = 0;
  uint64_t new_bytes = 0;
  uint64_t stored_bytes = 0;
  std::chrono::duration<double> elapsed{};  // Begin to the end of Commit
  std::vector<CodecUse> by_codec;           // of the chunks that it wrote
  std::vector<CoderUse> by_coder;           // of the same
  // What could not be read of the step that the save was compared with. It was stored anew, so this
  // step is whole.
  std::vector<std::string> warnings{};
};

// Collects one checkpoint and makes it visible in one atomic step. Made by Store::Begin.
// Thread rule: one thread at a time. The store must outlive the writer. A writer that is destroyed
// without Commit abandons itself: nothing of it is ever visible.
class CheckpointWriter {
 public:
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  virtual ~CheckpointWriter() = default;

  // Adds a tensor. Name, shape and strides are copied. `view.data` must stay valid *and unchanged*
  // until Commit or Abandon returns: varve reads it straight from there, on its own threads, and
  // makes no second copy of the state. kInvalidArgument: bad name, dtype, shape or strides, or a
  // (name, shard) that this checkpoint has already. The writer stays usable then. Any other error
  // is the save's own (disk full, say), after which only Abandon is left.
  virtual Status Put(const TensorView& view) = 0;

  // Adds an opaque item (data-loader state, a pickled object) of up to 64 MiB. The bytes are
  // copied.
  virtual Status PutBytes(std::string_view name, std::span<const std::byte> value) = 0;

  // Both are stored and returned as given. Calling again replaces.
  virtual Status SetTrainerProgress(const TrainerProgress& state) = 0;
  virtual Status SetTopology(const Topology& topology) = 0;

  // SetMetric sets a metric of this step, finite or not, which `best:loss` looks at. AddTag makes a
  // tag name this step, and no other step of its run any more. kInvalidArgument: see ValidateTag.
  virtual Status SetMetric(std::string_view name, double value) = 0;
  virtual Status AddTag(std::string_view tag) = 0;

  // Writes what is left, makes all of it durable, then makes it visible in one atomic step. When it
  // returns ok the checkpoint survives power loss. On error nothing is visible and the writer is
  // abandoned. kAlreadyExists when another writer committed the same step meanwhile.
  virtual Result<SaveReport> Commit() = 0;

  // Gives up and removes what was written. Harmless after Commit or a second time.
  virtual void Abandon() = 0;

 protected:
  CheckpointWriter() = default;
};

// A tag is a name without '@', ':', '*' or white space that is no number and not "latest" or
// "best".
Status ValidateTag(std::string_view tag);
// A run is a name without '@', ':' or white space.
Status ValidateRun(std::string_view run);

// One read of ReadMany, made by one of three functions: of a tensor, of a shard, or of a region. It
// copies nothing: name, slice, layout, padding and buffer must stay until the read returns. `out`
// is exactly the bytes of what is read, row-major. kInvalidArgument comes from the read.
class ReadRequest {
 public:
  // Reads the global tensor. `slice` has one range an axis, or none for the whole tensor. A tensor
  // that was saved without layouts is its shard 0.
  static ReadRequest Tensor(std::string_view name, std::span<std::byte> out,
                            std::span<const Range> slice = {}) {
    return {name, kAllShards, out, slice, nullptr, {}};
  }

  // Reads the local tensor of one shard. `number` is TensorInfo::shard, so kAllShards reads as
  // Tensor does.
  static ReadRequest Shard(std::string_view name, uint32_t number, std::span<std::byte> out,
                           std::span<const Range> slice = {}) {
    return {name, number, out, slice, nullptr, {}};
  }
  // Reads into `out`, the buffer of a region, what one shard holds of the region. All other bytes
  // of `out` stay as they are. kInvalidArgument: the shard is of another global shape.
  static ReadRequest Shard(std::string_view name, uint32_t number, std::span<std::byte> out,
                           const ShardLayout& region) {
    return {name, number, out, {}, &region, {}};
  }
  static ReadRequest Shard(std::string_view, uint32_t, std::span<std::byte>,
                           const ShardLayout&&) = delete;  // the layout would be gone

  // Reads what `layout` holds of the global tensor, put together from the shards that have it,
  // whatever their layouts. Padding gets `padding`, which is one element, or zeros when that is
  // empty. When a shard of this very layout is stored, padding gets what was saved there.
  static ReadRequest Region(std::string_view name, const ShardLayout& layout,
                            std::span<std::byte> out, std::span<const std::byte> padding = {}) {
    return {name, kAllShards, out, {}, &layout, padding};
  }
  static ReadRequest Region(std::string_view, const ShardLayout&&, std::span<std::byte>,
                            std::span<const std::byte> = {}) = delete;  // the layout would be gone

  // For those who make a CheckpointReader of their own.
  std::string_view name() const { return name_; }
  uint32_t shard() const { return shard_; }  // kAllShards: the global tensor
  std::span<std::byte> out() const { return out_; }
  std::span<const Range> slice() const { return slice_; }  // empty with a region
  const ShardLayout* region() const { return region_; }    // null: there is none
  std::span<const std::byte> padding() const { return padding_; }

 private:
  ReadRequest(std::string_view name, uint32_t shard, std::span<std::byte> out,
              std::span<const Range> slice, const ShardLayout* region,
              std::span<const std::byte> padding)
      : name_(name), shard_(shard), out_(out), slice_(slice), region_(region), padding_(padding) {}

  std::string_view name_;
  uint32_t shard_;
  std::span<std::byte> out_;
  std::span<const Range> slice_;
  const ShardLayout* region_;
  std::span<const std::byte> padding_;
};

// Reads one checkpoint. Made by Store::OpenCheckpoint.
// Thread rule: any number of threads. The store must outlive the reader. When another process drops
// the step while it is read, calls give kNotFound, never wrong bytes.
class CheckpointReader {
 public:
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;
  virtual ~CheckpointReader() = default;

  virtual const CheckpointInfo& info() const = 0;

  // All tensors, ordered by name: the global ones where shards have layouts, else each shard.
  virtual Result<std::vector<TensorInfo>> List() const = 0;
  // All shards, ordered by name, then number.
  virtual Result<std::vector<TensorInfo>> ListShards() const = 0;
  // The global tensor of a name, or one of its shards. A tensor that was saved without layouts is
  // its shard 0. kNotFound names the tensor and the step.
  virtual Result<TensorInfo> Find(std::string_view name, uint32_t shard = kAllShards) const = 0;

  // Reads a whole tensor. `out` must be exactly logical_bytes long (kInvalidArgument says both
  // sizes). Every chunk's digest is verified. kCorruption names run, step, tensor and chunk. The
  // contents of `out` are unspecified after an error.
  virtual Status Read(std::string_view name, std::span<std::byte> out) const = 0;
  // Reads the slice given by one range an axis, row-major, and touches only the chunks that overlap
  // it. Slices of sub-byte types must begin and end on whole bytes. Errors as Read, and
  // kInvalidArgument: a range lies outside of its axis.
  virtual Status ReadSlice(std::string_view name, std::span<const Range> slice,
                           std::span<std::byte> out) const = 0;
  // Reads many tensors, shards and regions in parallel. The first error wins. kCorruption names a
  // tensor whose shards do not hold all of a region, or hold parts of it twice. Such holes are
  // never filled with zeros.
  virtual Status ReadMany(std::span<const ReadRequest> requests) const = 0;

  // ListBytes gives the names of the opaque items, ordered. ReadBytes gives one item. kNotFound:
  // there is no such item.
  virtual Result<std::vector<std::string>> ListBytes() const = 0;
  virtual Result<std::vector<std::byte>> ReadBytes(std::string_view name) const = 0;

  // Both give what the save set, and nullopt when it set none.
  virtual Result<std::optional<TrainerProgress>> ReadTrainerProgress() const = 0;
  virtual Result<std::optional<Topology>> ReadTopology() const = 0;

 protected:
  CheckpointReader() = default;

 private:
  // For varve itself: this reader, if it is one of its own.
  friend class ShardedReader;
  virtual const ShardedReader* AsSharded() const { return nullptr; }
};

}  // namespace varve
