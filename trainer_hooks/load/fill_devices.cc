// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/load/fill_devices.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trainer_hooks/load/convert.h"
#include "trainer_hooks/load/pieces.h"

namespace varve::internal {

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
  bool HasValuesOf(const Job& other) const {
    return source == other.source && piece.region == other.piece.region;
  }
  // Returns the place that it fills.
  std::byte* place() const {
    return static_cast<std::byte*>(target->tensor->data) +
           BytesOf(target->tensor->dtype, piece.first);
  }
};

using Jobs = std::vector<Job>;

class DeviceFiller {
 public:
  DeviceFiller(const CheckpointReader& reader, RegionReader* read, DeviceTensorSource* devices)
      : reader_(reader), read_(read), devices_(devices) {
    if (devices != nullptr) half_bytes_ = devices->bounce().size() / 2;
  }

  // Pieces of one number come in one round, whatever they fill. So a source and what is stored as
  // its rounded copy are made from one read. The shards of a target come one after the other,
  // because together they might not fit into a round.
  void Add(const LoadTarget& target, const TensorInfo& source, DType via, bool is_of_several) {
    std::vector<Piece> pieces = CutTarget(*target.tensor);
    if (pieces.empty()) return;
    std::string name = source.derived_from.empty() ? source.name : source.derived_from;
    if (is_of_several) name += " " + ToString(LayoutOf(*target.tensor));
    std::vector<Jobs>& of_pieces = jobs_[name];
    if (of_pieces.size() < pieces.size()) of_pieces.resize(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      of_pieces[i].push_back({&target, &source, via, std::move(pieces[i])});
    }
  }

  Status Run() {
    VARVE_ASSIGN_OR_RETURN(const Rounds rounds, read_->AgreeOnRounds(ListPieces()));
    std::vector<Jobs> by_round(rounds.count);
    for (auto& [name, of_pieces] : jobs_) {
      const std::vector<size_t>& numbers = rounds.of_pieces.at(name);
      for (size_t i = 0; i < of_pieces.size(); ++i) {
        std::ranges::move(of_pieces[i], std::back_inserter(by_round[numbers[i]]));
      }
    }
    Status status = RunRounds(by_round);
    for (int half = 0; half < 2; ++half) {  // whatever has failed: nothing is written after it
      const Status arrived = jobs_.empty() ? Status::Ok() : devices_->AwaitWrites(half);
      if (status.ok()) status = arrived;
    }
    return status;
  }

 private:
  static constexpr size_t kLine = 64;
  static size_t Rounded(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

  // One round uses half of the memory.
  RankPieces ListPieces() const {
    RankPieces pieces{.round_bytes = half_bytes_};
    for (const auto& [name, of_pieces] : jobs_) {
      std::vector<uint64_t>& bytes = pieces.tensors[name];
      for (const Jobs& jobs : of_pieces) bytes.push_back(TargetBytes(jobs));
    }
    return pieces;
  }
  static size_t TargetBytes(const Jobs& jobs) {
    size_t bytes = 0;
    for (const Job& job : jobs) bytes += Rounded(job.target_bytes());
    return bytes;
  }

  Status RunRounds(const std::vector<Jobs>& rounds) {
    int half = 0;
    for (const Jobs& round : rounds) {
      VARVE_RETURN_IF_ERROR(RunRound(round, half));
      if (!round.empty()) half = 1 - half;
    }
    return Status::Ok();
  }

  Status RunRound(const Jobs& round, int half) {
    if (!round.empty()) VARVE_RETURN_IF_ERROR(devices_->AwaitWrites(half));
    PlaceValues(round, half);
    std::vector<ReadRequest> requests;
    for (size_t i = 0; i < round.size(); ++i) {
      if (IsReadBefore(round, i)) continue;
      requests.push_back(
          ReadRequest::Region(round[i].source->name, round[i].piece.region, read_values_[i]));
    }
    VARVE_RETURN_IF_ERROR(read_->Read(reader_, requests));
    tbb::parallel_for(size_t{0}, round.size(), [&](size_t i) { ConvertValues(round[i], i); });
    for (size_t i = 0; i < round.size(); ++i) {
      VARVE_RETURN_IF_ERROR(Write(round[i], values_[i], half));
    }
    const bool is_large = !round.empty() && values_[0].data() == large_.data();
    return is_large ? devices_->AwaitWrites(half) : Status::Ok();
  }

  // Its values are those of the job before it: the weight from which this master is made.
  static bool IsReadBefore(const Jobs& round, size_t i) {
    return i > 0 && round[i].HasValuesOf(round[i - 1]);
  }
  static bool IsReadApart(const Jobs& round, size_t i) {
    return round[i].is_converted() && !IsReadBefore(round, i);
  }

  // Memory for the values of a round as they are written, and as they are read.
  void PlaceValues(const Jobs& round, int half) {
    values_.clear();
    read_values_.clear();
    if (round.empty()) return;
    size_t apart = 0;
    for (size_t i = 0; i < round.size(); ++i) {
      if (IsReadApart(round, i)) apart += Rounded(round[i].source_bytes());
    }
    if (scratch_.size() < apart) scratch_.resize(apart);
    std::byte* from = scratch_.data();
    std::byte* to = PlaceOfRound(TargetBytes(round), half);
    for (size_t i = 0; i < round.size(); ++i) {
      values_.emplace_back(to, round[i].target_bytes());
      to += Rounded(values_.back().size());
      if (IsReadBefore(round, i)) {
        read_values_.push_back(read_values_.back());
      } else if (IsReadApart(round, i)) {
        read_values_.emplace_back(from, round[i].source_bytes());
        from += Rounded(read_values_.back().size());
      } else {
        read_values_.push_back(values_.back());
      }
    }
  }

  std::byte* PlaceOfRound(size_t bytes, int half) {
    if (bytes <= half_bytes_) {
      return devices_->bounce().data() + static_cast<size_t>(half) * half_bytes_;
    }
    large_.resize(bytes);
    return large_.data();
  }

  void ConvertValues(const Job& job, size_t i) const {
    if (read_values_[i].data() == values_[i].data()) return;
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
  std::map<std::string, std::vector<Jobs>> jobs_;  // by name, as Add says, and number of the piece
  // These belong to the round under way.
  std::vector<std::span<std::byte>> values_;
  std::vector<std::span<std::byte>> read_values_;  // before they are converted
  std::vector<std::byte> scratch_;
  std::vector<std::byte> large_;
};

}  // namespace

Status FillDevices(const CheckpointReader& reader, const LoadPlan& plan, RegionReader* read,
                   DeviceTensorSource* devices) {
  DeviceFiller filler(reader, read, devices);
  std::map<std::string_view, size_t> num_shards;  // of the target, by name
  for (const Fill& fill : plan.fills) ++num_shards[fill.target.tensor->name];
  for (const MasterFill& fill : plan.masters) ++num_shards[fill.master.tensor->name];
  const auto is_of_several = [&](const LoadTarget& target) {
    return num_shards[target.tensor->name] > 1;
  };
  std::map<const void*, const TensorInfo*> sources;  // by place: of tied targets one is filled
  for (const Fill& fill : plan.fills) {
    if (fill.target.bytes > 0 || !sources.contains(fill.target.tensor->data)) {
      sources[fill.target.tensor->data] = fill.source;
    }
    if (fill.target.tensor->device == kHost) continue;
    filler.Add(fill.target, *fill.source, fill.target.tensor->dtype, is_of_several(fill.target));
  }
  // Reads the values of a weight on the host, which has been filled, once more.
  for (const MasterFill& fill : plan.masters) {
    if (IsMadeOnHost(fill)) continue;
    filler.Add(fill.master, *sources.at(fill.weight.tensor->data), fill.weight.tensor->dtype,
               is_of_several(fill.master));
  }
  return filler.Run();
}

}  // namespace varve::internal
