// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/load/fill_devices.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes_of.h"
#include "base/guarded.h"
#include "store/shards/regions.h"
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

  void Add(const LoadTarget& target, const TensorInfo& source, DType via, bool is_of_several) {
    values_of_.push_back({&target, &source, via, is_of_several});
  }

  Status Run() {
    VARVE_RETURN_IF_ERROR(FillDirectly());
    for (const Values& values : values_of_) AddJobs(values);
    VARVE_ASSIGN_OR_RETURN(const Rounds rounds, read_->AgreeOnRounds(ListPieces()));
    std::vector<Jobs> by_round(rounds.count);
    for (auto& [name, of_pieces] : jobs_) {
      const std::vector<size_t>& numbers = rounds.of_pieces.at(name);
      for (size_t i = 0; i < of_pieces.size(); ++i) {
        std::ranges::move(of_pieces[i], std::back_inserter(by_round[numbers[i]]));
      }
    }
    Status status = Guarded("filling tensors", [&] { return RunRounds(by_round); });
    for (int half = 0; half < 2; ++half) {  // whatever has failed: nothing is written after it
      const Status arrived = jobs_.empty() ? Status::Ok() : devices_->AwaitWrites(half);
      if (status.ok()) status = arrived;
    }
    return status;
  }

 private:
  // The values of a tensor of the checkpoint, for a target.
  struct Values {
    const LoadTarget* target;
    const TensorInfo* source;
    DType via;  // as Job
    bool is_of_several;

    std::string origin() const {
      return source->derived_from.empty() ? source->name : source->derived_from;
    }
  };

  // Fills what ranks send from device to device, and takes it from the list.
  Status FillDirectly() {
    if (!read_->device().has_value()) return Status::Ok();
    const std::set<std::string> others = FindOthers(*read_->device());
    std::vector<RegionReader::DeviceRead> reads;
    std::vector<size_t> places;
    for (size_t i = 0; i < values_of_.size(); ++i) {
      const Values& values = values_of_[i];
      if (others.contains(values.origin())) continue;
      const StateTensor& tensor = *values.target->tensor;
      const std::span out(static_cast<std::byte*>(tensor.data), values.target->bytes);
      const std::string& name = values.source->name;
      reads.push_back({tensor.layout.has_value() ? ReadRequest::Region(name, *tensor.layout, out)
                                                 : ReadRequest::Tensor(name, out),
                       values.origin()});
      places.push_back(i);
    }
    VARVE_ASSIGN_OR_RETURN(const auto filled,
                           read_->ReadToDevice(reader_, reads, others, devices_));
    std::vector<bool> is_filled(values_of_.size());
    for (size_t i = 0; i < places.size(); ++i) is_filled[places[i]] = filled[i];
    std::vector<Values> left;
    for (size_t i = 0; i < values_of_.size(); ++i) {
      if (!is_filled[i]) left.push_back(values_of_[i]);
    }
    values_of_ = std::move(left);
    return Status::Ok();
  }

  // Returns the origins of values that come through the host: those that are converted, those for
  // another place than `device`, and those that are read once for several tensors.
  std::set<std::string> FindOthers(int device) const {
    const bool can_copy = devices_ != nullptr && devices_->CopyOnDevice(device, {}).ok();
    std::map<std::string, const TensorInfo*> sources;
    std::set<std::string> others;
    for (const Values& values : values_of_) {
      const StateTensor& tensor = *values.target->tensor;
      const DType dtype = values.source->dtype;
      const TensorInfo* const source =
          sources.try_emplace(values.origin(), values.source).first->second;
      const bool is_direct = can_copy && tensor.device == device && dtype == values.via &&
                             dtype == tensor.dtype && values.target->strides.IsDense() &&
                             source == values.source;
      if (!is_direct) others.insert(values.origin());
    }
    return others;
  }

  // Pieces of one number come in one round, whatever they fill. So a source and what is stored as
  // its rounded copy are made from one read. The shards of a target come one after the other,
  // because together they might not fit into a round.
  void AddJobs(const Values& values) {
    const StateTensor& tensor = *values.target->tensor;
    std::vector<Piece> pieces = CutTarget(tensor);
    if (pieces.empty()) return;
    std::string name = values.origin();
    if (values.is_of_several) name += " " + ToString(LayoutOf(tensor));
    std::vector<Jobs>& of_pieces = jobs_[name];
    if (of_pieces.size() < pieces.size()) of_pieces.resize(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      of_pieces[i].push_back({values.target, values.source, values.via, std::move(pieces[i])});
    }
  }

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
  std::vector<Values> values_of_;  // what is still to be filled, in the order of Add
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
