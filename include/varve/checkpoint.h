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
#include <utility>
#include <vector>

#include "varve/result.h"
#include "varve/tensor.h"
#include "varve/trainer_progress.h"

namespace varve {

// Names a checkpoint: a step of a run.
struct CheckpointId {
  std::string run;
  uint64_t step = 0;
  bool operator==(const CheckpointId&) const = default;
};

// What the store knows of a checkpoint without reading its tensors.
struct CheckpointInfo {
  CheckpointId id;
  std::chrono::system_clock::time_point created;  // microseconds, UTC
  // The step that the save was compared with, or the step that Fork copied. nullopt: there was
  // none.
  std::optional<CheckpointId> parent;
  uint64_t num_tensors = 0;
  uint64_t logical_bytes = 0;  // raw bytes of all tensors as the trainer sees them
  uint64_t new_bytes = 0;      // raw bytes of chunks that were not in the store before
  uint64_t stored_bytes = 0;   // encoded bytes of these chunks
  std::map<std::string, double> metrics;
  std::vector<std::string> tags;  // sorted
};

// Counts the chunks that are stored in one way: "raw", "keyframe", "delta", "scaled delta" or
// "replay" (varve/options.h, docs/frame.md). A chunk that is only a reference to another chunk, or
// to the chunk of a master, is not counted. An encoded chunk is called a frame.
struct CodecUse {
  std::string codec;
  uint64_t num_chunks = 0;
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
};

// A frame is split into planes, such as the low and the high bytes of its elements (docs/frame.md).
// CoderUse counts the planes that one coder has encoded: "raw", "zstd", "sparse" and others. The
// coder "header" stands for the other bytes of frames. "unknown" stands for whole frames that were
// saved by a version of varve that did not count coders. The rows of all coders add up to all bytes
// of the frames.
struct CoderUse {
  std::string coder;
  uint64_t num_planes = 0;
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
};

// Says what a Commit saved, and what it cost. Bytes are counted as in CheckpointInfo.
struct SaveReport {
  CheckpointId id;
  uint64_t num_tensors = 0;
  uint64_t logical_bytes = 0;
  uint64_t new_bytes = 0;
  uint64_t stored_bytes = 0;
  std::chrono::duration<double> elapsed{};  // from Begin to the end of Commit
  std::vector<CodecUse> by_codec;           // the chunks that Commit wrote, a row for each codec
  std::vector<CoderUse> by_coder;           // the same chunks, a row for each coder
  // Messages about damaged records (docs/format.md) of the parent step. The save stored the chunks
  // of these records anew, so its own step is complete.
  std::vector<std::string> warnings{};
};

// Collects one checkpoint and makes all of it visible atomically. Store::Begin makes a writer. If a
// writer is destroyed without Commit, it calls Abandon. After Commit or Abandon, every call but
// Abandon returns kFailedPrecondition. After kInvalidArgument of any call but Commit, the writer
// can still be used.
//
// Thread rule: one thread at a time. The store must outlive the writer.
class CheckpointWriter {
 public:
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  virtual ~CheckpointWriter() = default;

  // Adds a tensor. Name, shape and strides are copied. `view.data` must stay valid *and unchanged*
  // until Commit or Abandon returns: varve reads it straight from there, on its own threads, and
  // makes no second copy of the state. kInvalidArgument: bad name, dtype, shape or strides, or a
  // tensor of this name and shard was added before.
  virtual Status Put(const TensorView& view) = 0;

  // Adds an opaque item (data-loader state, a pickled object) of up to 64 MiB. The bytes are
  // copied. kInvalidArgument: a bad name, too many bytes, or an item of this name was added before.
  virtual Status PutBytes(std::string_view name, std::span<const std::byte> value) = 0;

  // The trainer progress and the topology are stored and read back unchanged. A second call
  // replaces the first.
  virtual Status SetTrainerProgress(const TrainerProgress& state) = 0;
  virtual Status SetTopology(const Topology& topology) = 0;

  // SetMetric sets a metric of this step. `value` may be infinite or NaN. The step expression
  // "best:loss" compares the metrics named loss. AddTag gives this step a tag. If another step of
  // the run has the tag, the tag moves. kInvalidArgument: see ValidateName and ValidateTag.
  virtual Status SetMetric(std::string_view name, double value) = 0;
  virtual Status AddTag(std::string_view tag) = 0;

  // Encodes and writes the checkpoint, makes all of it durable, then makes it visible, atomically.
  // When it returns ok, the checkpoint survives power loss. On error nothing is visible and the
  // writer is abandoned. kAlreadyExists: another writer has committed the same step meanwhile, and
  // SaveOptions::on_existing is kError. kFailedPrecondition: another save is based on a step that
  // Commit would replace or move, or a step that Commit would move is being dropped. kAborted: a
  // StopScope ended the call (varve/stop.h). kInvalidArgument: the shards of a tensor do not make a
  // whole tensor, or replicas differ. kIOError: for example, the disk is full.
  virtual Result<SaveReport> Commit() = 0;

  // Ends the save without a checkpoint. Files that it wrote are removed. Does nothing after Commit
  // or a second time.
  virtual void Abandon() = 0;

 protected:
  CheckpointWriter() = default;
};

// Checks a tag: a name (ValidateName) without '@', ':', '*' or white space. "latest" and "best" are
// not allowed. A tag must not consist only of digits and . - + _ e E, such as "100", "1e5" or
// "2026-11-27". kInvalidArgument says which rule is broken.
Status ValidateTag(std::string_view tag);
// Checks the name of a run: a name (ValidateName) without '@', ':' or white space.
// kInvalidArgument says which rule is broken.
Status ValidateRun(std::string_view run);

// Describes one read of ReadMany: of a tensor, of a shard, or of a region. It copies nothing, so
// name, slice, layout, padding and buffer must stay valid until ReadMany returns. `out` is
// row-major, and exactly as large as the slice, the shard or the region that the request describes.
// ReadMany returns the error of a wrong request.
class ReadRequest {
 public:
  // Reads the global tensor. `slice` has one range for each axis. Empty = the whole tensor. A
  // tensor that was saved without layouts has no global tensor. Its shard 0 is read instead, even
  // if there are other shards.
  static ReadRequest Tensor(std::string_view name, std::span<std::byte> out,
                            std::span<const Range> slice = {}) {
    return {name, kAllShards, out, slice, nullptr, {}};
  }

  // Reads the local tensor of one shard. `number` is TensorInfo::shard. With kAllShards this is the
  // same request as Tensor.
  static ReadRequest Shard(std::string_view name, uint32_t number, std::span<std::byte> out,
                           std::span<const Range> slice = {}) {
    return {name, number, out, slice, nullptr, {}};
  }
  // Reads what one shard holds of a region. The region is the part of the global tensor that
  // `region` describes. `out` is the buffer of the whole region. Bytes of `out` that this shard
  // does not hold stay as they are. kInvalidArgument: the global shapes of the shard and of the
  // region differ.
  static ReadRequest Shard(std::string_view name, uint32_t number, std::span<std::byte> out,
                           const ShardLayout& region) {
    return {name, number, out, {}, &region, {}};
  }
  static ReadRequest Shard(std::string_view, uint32_t, std::span<std::byte>,
                           const ShardLayout&&) = delete;  // the layout would be gone

  // Reads the part of the global tensor that `layout` describes, from whatever shards hold it. If a
  // shard with this very layout is stored, its padding is read, too. Otherwise padding in `out` is
  // filled with `padding`, the bytes of one element. If `padding` is empty, the fill is bytes of
  // value 0. kInvalidArgument: `padding` has another size.
  static ReadRequest Region(std::string_view name, const ShardLayout& layout,
                            std::span<std::byte> out, std::span<const std::byte> padding = {}) {
    return {name, kAllShards, out, {}, &layout, padding};
  }
  static ReadRequest Region(std::string_view, const ShardLayout&&, std::span<std::byte>,
                            std::span<const std::byte> = {}) = delete;  // the layout would be gone

  // The fields, for classes that implement CheckpointReader.
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

// What is known of the shards of a checkpoint. Without details, each info lacks the number of
// chunks, role, alias_of and derived_from.
struct ShardOutline {
  std::vector<TensorInfo> shards;  // ordered by name, then number
  bool has_details = true;
};

// Reads one checkpoint. Store::OpenCheckpoint makes a reader. If the step is dropped, replaced or
// moved to another run while a reader of it is open, calls of the reader may return kNotFound. They
// never return wrong bytes. A step that was replaced or moved can be opened again. Some readers are
// not affected at all. If a Store is a group that is open for writing (Group::Join, or Store::Open
// of the root of the group), its readers keep their step as it was.
//
// Thread rule: any number of threads at a time. The store must outlive the reader.
class CheckpointReader {
 public:
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;
  virtual ~CheckpointReader() = default;

  virtual const CheckpointInfo& info() const = 0;

  // All tensors, ordered by name. A tensor whose shards have layouts is listed as one global
  // tensor. Otherwise each shard is listed.
  virtual Result<std::vector<TensorInfo>> List() const = 0;
  // All shards, ordered by name, then number.
  virtual Result<std::vector<TensorInfo>> ListShards() const = 0;
  // As ListShards. For a group, reads only a list of shards in the root. It has no details.
  virtual Result<ShardOutline> OutlineShards() const {
    VARVE_ASSIGN_OR_RETURN(std::vector<TensorInfo> shards, ListShards());
    return ShardOutline{std::move(shards)};
  }
  // Returns the shard with this number. With kAllShards, returns the global tensor. A tensor that
  // was saved without layouts has no global tensor. Its shard 0 is returned instead, even if there
  // are other shards. kNotFound names the tensor and the step.
  virtual Result<TensorInfo> Find(std::string_view name, uint32_t shard = kAllShards) const = 0;

  // Reads a whole tensor, row-major. `out` must be exactly logical_bytes long (kInvalidArgument
  // says both sizes). The digest of every chunk is verified. kCorruption names run, step, tensor
  // and chunk. kNotFound: as Find. The contents of `out` are unspecified after an error.
  virtual Status Read(std::string_view name, std::span<std::byte> out) const = 0;
  // Reads a slice, row-major. `slice` has one range for each axis. Only the chunks that overlap the
  // slice are read. If an element has less than a byte, every contiguous piece of the slice must
  // begin and end on whole bytes. Errors as Read. kInvalidArgument also means that a range lies
  // outside its axis.
  virtual Status ReadSlice(std::string_view name, std::span<const Range> slice,
                           std::span<std::byte> out) const = 0;
  // Reads many tensors, shards and regions in parallel. Returns the first error. kCorruption names
  // a tensor whose shards do not hold all of a region, or overlap without being replicas. A missing
  // part is never filled with zeros.
  virtual Status ReadMany(std::span<const ReadRequest> requests) const = 0;

  // ListBytes gives the names of the opaque items, ordered. ReadBytes gives one item. kNotFound:
  // there is no such item.
  virtual Result<std::vector<std::string>> ListBytes() const = 0;
  virtual Result<std::vector<std::byte>> ReadBytes(std::string_view name) const = 0;

  // The trainer progress and the topology of the save. nullopt: the save set none.
  virtual Result<std::optional<TrainerProgress>> ReadTrainerProgress() const = 0;
  virtual Result<std::optional<Topology>> ReadTopology() const = 0;
  // The trainer progress as one rank needs it. A group opens no members but those of rank 0 and of
  // this rank. So random number generators that only other ranks have saved may be missing.
  virtual Result<std::optional<TrainerProgress>> ReadTrainerProgressFor(uint32_t /*rank*/) const {
    return ReadTrainerProgress();
  }

 protected:
  CheckpointReader() = default;
};

}  // namespace varve
