// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/load/fill.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstring>

#include "base/bytes_of.h"
#include "trainer_hooks/load/convert.h"
#include "trainer_hooks/load/fill_devices.h"
#include "trainer_hooks/load/pieces.h"

namespace varve::internal {

namespace {

constexpr size_t kScratchBytes = size_t{64} << 20;
// Elements converted at a time, small enough for the cache.
constexpr int64_t kRound = 4096;
constexpr size_t kMaxElementBytes = 8;

// Puts values into the elements of a target from `first` on.
void Place(DType dtype, std::span<const std::byte> values, int64_t first,
           const LoadTarget& target) {
  const DType to = target.tensor->dtype;
  const size_t element_bytes = BytesOf(to, 1);
  auto* base = static_cast<std::byte*>(target.tensor->data);
  if (dtype == to) return target.strides.Scatter(values, element_bytes, first, base);
  std::byte round[kRound * kMaxElementBytes];
  for (size_t at = 0; at < values.size();) {
    const auto source = values.subspan(at, std::min(BytesOf(dtype, kRound), values.size() - at));
    const auto n = static_cast<int64_t>(source.size() / BytesOf(dtype, 1));
    const std::span converted(round, BytesOf(to, n));
    Convert(dtype, source, to, converted);
    target.strides.Scatter(converted, element_bytes, first, base);
    at += source.size();
    first += n;
  }
}

void MakeMaster(const MasterFill& fill) {
  const DType dtype = fill.weight.tensor->dtype;
  std::byte round[kRound * kMaxElementBytes];
  for (int64_t first = 0; first < fill.weight.elements; first += kRound) {
    const int64_t n = std::min(kRound, fill.weight.elements - first);
    const std::span values(round, BytesOf(dtype, n));
    fill.weight.strides.Gather(static_cast<const std::byte*>(fill.weight.tensor->data),
                               BytesOf(dtype, 1), first, values);
    Place(dtype, values, first, fill.master);
  }
}

bool IsOnHost(const LoadTarget& target) { return target.tensor->device == kHost; }

bool IsReadInPlace(const Fill& fill) {
  return IsOnHost(fill.target) && fill.target.strides.IsDense() &&
         fill.source->dtype == fill.target.tensor->dtype;
}

Status ReadInPlace(const CheckpointReader& reader, const LoadPlan& plan, RegionReader* read) {
  std::vector<ReadRequest> requests;
  for (const Fill& fill : plan.fills) {
    if (!IsReadInPlace(fill)) continue;
    const std::span out(static_cast<std::byte*>(fill.target.tensor->data), fill.target.bytes);
    const auto& layout = fill.target.tensor->layout;
    const std::string& name = fill.source->name;
    requests.push_back(layout.has_value() ? ReadRequest::Region(name, *layout, out)
                                          : ReadRequest::Tensor(name, out));
  }
  return read->Read(reader, requests);
}

// Reads pieces of tensors into scratch memory, as many as it holds, and places them from there.
class ScratchReader {
 public:
  explicit ScratchReader(const CheckpointReader& reader) : reader_(reader) {}

  Status Add(const Fill& fill) {
    for (Piece& piece : CutTarget(*fill.target.tensor)) {
      const size_t bytes = BytesOf(fill.source->dtype, piece.count);
      if (bytes_ > 0 && bytes_ + bytes > kScratchBytes) VARVE_RETURN_IF_ERROR(Flush());
      jobs_.push_back({&fill, std::move(piece), bytes_, bytes});
      bytes_ += bytes;
    }
    return Status::Ok();
  }

  Status Flush() {
    if (scratch_.size() < bytes_) scratch_.resize(bytes_);
    std::vector<ReadRequest> requests;
    for (const Job& job : jobs_) {
      requests.push_back(
          ReadRequest::Region(job.fill->source->name, job.piece.region, ValuesOf(job)));
    }
    VARVE_RETURN_IF_ERROR(reader_.ReadMany(requests));
    tbb::parallel_for(size_t{0}, jobs_.size(), [this](size_t i) {
      const Job& job = jobs_[i];
      Place(job.fill->source->dtype, ValuesOf(job), job.piece.first, job.fill->target);
    });
    jobs_.clear();
    bytes_ = 0;
    return Status::Ok();
  }

 private:
  struct Job {
    const Fill* fill;
    Piece piece;
    size_t begin;  // in the scratch
    size_t bytes;
  };
  std::span<std::byte> ValuesOf(const Job& job) {
    return std::span(scratch_).subspan(job.begin, job.bytes);
  }

  const CheckpointReader& reader_;
  std::vector<Job> jobs_;
  std::vector<std::byte> scratch_;
  size_t bytes_ = 0;  // of all jobs
};

// Returns the values of a tie's tensors in the dtype of their target, piece by piece.
Result<bool> AreEqual(const CheckpointReader& reader, const TieCheck& tie) {
  const DType dtype = tie.first->dtype;
  for (const Piece& piece : CutTarget(*tie.first)) {
    std::vector<ReadRequest> requests;
    std::vector<std::byte> read[2];
    std::vector<std::byte> converted[2];
    const TensorInfo* sources[2] = {tie.first_source, tie.second_source};
    for (int i = 0; i < 2; ++i) {
      read[i].resize(BytesOf(sources[i]->dtype, piece.count));
      requests.push_back(ReadRequest::Region(sources[i]->name, piece.region, read[i]));
    }
    VARVE_RETURN_IF_ERROR(reader.ReadMany(requests));
    for (int i = 0; i < 2; ++i) {
      converted[i].resize(BytesOf(dtype, piece.count));
      Convert(sources[i]->dtype, read[i], dtype, converted[i]);
    }
    if (converted[0] != converted[1]) return false;
  }
  return true;
}

}  // namespace

Status CheckTies(const CheckpointReader& reader, LoadPlan* plan) {
  for (const TieCheck& tie : plan->ties) {
    VARVE_ASSIGN_OR_RETURN(const bool equal, AreEqual(reader, tie));
    if (equal) continue;
    plan->faults.push_back("tensor " + tie.second->name + ": tied to " + tie.first->name +
                           " in the target, but their copies in the checkpoint (" +
                           tie.second_source->name + ", " + tie.first_source->name +
                           ") have diverged, expected equal values");
  }
  return Status::Ok();
}

Status FillTargets(const CheckpointReader& reader, const LoadPlan& plan, RegionReader* read,
                   DeviceTensorSource* devices) {
  VARVE_RETURN_IF_ERROR(ReadInPlace(reader, plan, read));
  ScratchReader scratch(reader);
  for (const Fill& fill : plan.fills) {
    const bool is_scattered = IsOnHost(fill.target) && !IsReadInPlace(fill);
    if (is_scattered) VARVE_RETURN_IF_ERROR(scratch.Add(fill));
  }
  VARVE_RETURN_IF_ERROR(scratch.Flush());
  tbb::parallel_for(size_t{0}, plan.masters.size(), [&](size_t i) {
    if (IsMadeOnHost(plan.masters[i])) MakeMaster(plan.masters[i]);
  });
  return FillDevices(reader, plan, read, devices);
}

}  // namespace varve::internal
