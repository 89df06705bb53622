// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/fill_devices.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "trainer_hooks/convert.h"
#include "trainer_hooks/pieces.h"

namespace varve {
namespace {

// A piece of a target, with the values of a tensor of the checkpoint.
struct Job {
  const LoadTarget* target;
  const TensorInfo* source;
  DType via;  // a type that the values are converted to on the way
  Piece piece;

  size_t source_bytes() const { return BytesOf(source->dtype, piece.count); }
  size_t target_bytes() const { return BytesOf(target->tensor->dtype, piece.count); }
  bool is_converted() const { return source->dtype != via || via != target->tensor->dtype; }
  // Where it goes.
  std::byte* place() const {
    return static_cast<std::byte*>(target->tensor->data) +
           BytesOf(target->tensor->dtype, piece.first);
  }
};

using Round = std::vector<Job>;

class DeviceFiller {
 public:
  DeviceFiller(const CheckpointReader& reader, RegionReader* read, DeviceTensorSource* devices)
      : reader_(reader), read_(read), devices_(devices) {
    if (devices != nullptr) half_bytes_ = devices->bounce().size() / 2;
  }

  // Rounds are as long as half of the memory; a piece that is longer has one for itself.
  void Add(const LoadTarget& target, const TensorInfo& source, DType via) {
    for (Piece& piece : CutTarget(*target.tensor)) {
      Job job{&target, &source, via, std::move(piece)};
      const size_t bytes = Rounded(job.target_bytes());
      if (rounds_.empty() || round_bytes_ + bytes > half_bytes_) {
        rounds_.emplace_back();
        round_bytes_ = 0;
      }
      round_bytes_ += bytes;
      rounds_.back().push_back(std::move(job));
    }
  }

  Status Run() {
    VARVE_ASSIGN_OR_RETURN(const size_t count, read_->AgreeOnRounds(rounds_.size()));
    Status status;
    for (size_t i = 0; i < count && status.ok(); ++i) {
      status = RunRound(i < rounds_.size() ? rounds_[i] : Round(), static_cast<int>(i % 2));
    }
    for (int half = 0; half < 2; ++half) {  // whatever has failed: nothing is written after it
      const Status arrived = rounds_.empty() ? Status::Ok() : devices_->AwaitWrites(half);
      if (status.ok()) status = arrived;
    }
    return status;
  }

 private:
  static constexpr size_t kLine = 64;
  static size_t Rounded(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

  Status RunRound(const Round& round, int half) {
    if (!round.empty()) VARVE_RETURN_IF_ERROR(devices_->AwaitWrites(half));
    PlaceValues(round, half);
    std::vector<ReadRequest> requests;
    for (size_t i = 0; i < round.size(); ++i) {
      const Job& job = round[i];
      requests.push_back({.name = job.source->name,
                          .out = job.is_converted() ? read_values_[i] : values_[i],
                          .region = &job.piece.region});
    }
    VARVE_RETURN_IF_ERROR(read_->Read(reader_, requests));
    tbb::parallel_for(size_t{0}, round.size(), [&](size_t i) { ConvertValues(round[i], i); });
    for (size_t i = 0; i < round.size(); ++i) {
      VARVE_RETURN_IF_ERROR(Write(round[i], values_[i], half));
    }
    const bool is_large = !round.empty() && values_[0].data() == large_.data();
    return is_large ? devices_->AwaitWrites(half) : Status::Ok();
  }

  // Memory for the values of a round as they are read, and as they are written.
  void PlaceValues(const Round& round, int half) {
    size_t converted = 0, read = 0;
    for (const Job& job : round) {
      converted += Rounded(job.target_bytes());
      if (job.is_converted()) read += Rounded(job.source_bytes());
    }
    if (scratch_.size() < read) scratch_.resize(read);
    if (converted > half_bytes_) large_.resize(converted);
    std::byte* to =
        converted > half_bytes_
            ? large_.data()
            : (round.empty() ? nullptr
                             : devices_->bounce().data() + static_cast<size_t>(half) * half_bytes_);
    std::byte* from = scratch_.data();
    values_.clear();
    read_values_.clear();
    for (const Job& job : round) {
      values_.emplace_back(to, job.target_bytes());
      to += Rounded(job.target_bytes());
      read_values_.emplace_back(from, job.is_converted() ? job.source_bytes() : 0);
      from += Rounded(read_values_.back().size());
    }
  }

  void ConvertValues(const Job& job, size_t i) const {
    if (!job.is_converted()) return;
    const DType to = job.target->tensor->dtype;
    if (job.source->dtype == job.via) return Convert(job.via, read_values_[i], to, values_[i]);
    std::vector<std::byte> between(BytesOf(job.via, job.piece.count));
    Convert(job.source->dtype, read_values_[i], job.via, between);
    Convert(job.via, between, to, values_[i]);
  }

  Status Write(const Job& job, std::span<const std::byte> values, int half) {
    const StateTensor& tensor = *job.target->tensor;
    if (tensor.device != kHost) return devices_->Write(values, tensor.device, job.place(), half);
    job.target->strides.Scatter(values, BytesOf(tensor.dtype, 1), job.piece.first,
                                static_cast<std::byte*>(tensor.data));
    return Status::Ok();
  }

  const CheckpointReader& reader_;
  RegionReader* const read_;
  DeviceTensorSource* const devices_;
  size_t half_bytes_ = 0;
  std::vector<Round> rounds_;
  size_t round_bytes_ = 0;  // of the last of them
  // Of the round under way:
  std::vector<std::span<std::byte>> values_;
  std::vector<std::span<std::byte>> read_values_;  // before they are converted
  std::vector<std::byte> scratch_;
  std::vector<std::byte> large_;
};

}  // namespace

Status FillDevices(const CheckpointReader& reader, const LoadPlan& plan, RegionReader* read,
                   DeviceTensorSource* devices) {
  DeviceFiller filler(reader, read, devices);
  std::map<const void*, const TensorInfo*> sources;  // by place: of tied targets one is filled
  for (const Fill& fill : plan.fills) {
    sources[fill.target.tensor->data] = fill.source;
    if (fill.target.tensor->device == kHost) continue;
    filler.Add(fill.target, *fill.source, fill.target.tensor->dtype);
  }
  // The values of a weight that the host cannot look at are read once more.
  for (const MasterFill& fill : plan.masters) {
    if (IsMadeOnHost(fill)) continue;
    filler.Add(fill.master, *sources.at(fill.weight.tensor->data), fill.weight.tensor->dtype);
  }
  return filler.Run();
}

}  // namespace varve
