// SPDX-License-Identifier: Apache-2.0
#include "gpt/ranks.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace gpt {
namespace {

// What another rank sends must be as long as this rank expects. All run the same program with the
// same options, and the trainer would not know what to do with less.
varve::Status CheckSize(const std::vector<std::byte>& bytes, size_t expected) {
  if (bytes.size() == expected) return varve::Status::Ok();
  return varve::Status::FailedPrecondition("another rank sent " + std::to_string(bytes.size()) +
                                           " bytes where " + std::to_string(expected) +
                                           " belong: are its options the same?");
}

template <typename T>
varve::Status CopyTo(const std::vector<std::byte>& bytes, std::span<T> values) {
  VARVE_RETURN_IF_ERROR(CheckSize(bytes, values.size_bytes()));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return varve::Status::Ok();
}

// sums = values of the first rank + those of the second + ...
template <typename Real>
varve::Status AddInOrder(const std::vector<std::vector<std::byte>>& all, std::span<Real> sums) {
  std::vector<Real> values(sums.size());
  std::fill(sums.begin(), sums.end(), Real{0});
  for (const auto& bytes : all) {
    VARVE_RETURN_IF_ERROR(CopyTo<Real>(bytes, values));
    std::transform(sums.begin(), sums.end(), values.begin(), sums.begin(), std::plus<>());
  }
  return varve::Status::Ok();
}

}  // namespace

varve::Result<std::unique_ptr<Ranks>> Ranks::Make(std::unique_ptr<varve::RankGroup> world,
                                                  const Topology& topology) {
  if (world->size() != topology.size()) {
    return varve::Status::InvalidArgument(
        std::to_string(topology.tp) + " tensor parallel x " + std::to_string(topology.pp) +
        " pipeline parallel x " + std::to_string(topology.dp) + " data parallel ranks are not " +
        std::to_string(world->size()));
  }
  auto ranks = std::make_unique<Ranks>();
  Position& at = ranks->position_ = Position::Of(topology, world->rank());
  // Ranks that differ only in one dimension are a group. The other dimensions number the groups.
  VARVE_ASSIGN_OR_RETURN(ranks->tp_, world->Split(at.pp_rank * topology.dp + at.dp_rank));
  VARVE_ASSIGN_OR_RETURN(ranks->pp_, world->Split(at.dp_rank * topology.tp + at.tp_rank));
  VARVE_ASSIGN_OR_RETURN(ranks->dp_, world->Split(at.pp_rank * topology.tp + at.tp_rank));
  VARVE_ASSIGN_OR_RETURN(ranks->saves_, world->Split(0));
  ranks->world_ = std::move(world);
  return ranks;
}

std::vector<std::vector<std::byte>> Ranks::Keep(
    varve::Result<std::vector<std::vector<std::byte>>> received) {
  if (received.ok()) return *std::move(received);
  status_ = received.status();
  return {};
}

std::vector<std::vector<std::byte>> Ranks::Gather(varve::RankGroup* group, Bytes mine) {
  return Keep(group->AllGather(mine));
}

std::vector<std::vector<std::byte>> Ranks::Exchange(varve::RankGroup* group,
                                                    const std::vector<Bytes>& to_each) {
  return Keep(group->AllToAll(to_each));
}

template <typename Real>
void Ranks::SumOver(varve::RankGroup* group, std::span<Real> values) {
  if (is_over() || group == nullptr || group->size() == 1) return;
  const auto all = Gather(group, std::as_bytes(values));
  if (!is_over()) status_ = AddInOrder(all, values);
}

template <typename Real>
void Ranks::SumOverTp(std::span<Real> values) {
  SumOver(tp_.get(), values);
}

template <typename Real>
void Ranks::GatherColumns(std::span<const Real> mine, int64_t N, std::span<Real> all) {
  const int tp = position_.topology.tp;
  const auto columns = static_cast<int64_t>(mine.size()) / N;
  if (tp == 1) {
    std::copy(mine.begin(), mine.end(), all.begin());
    return;
  }
  if (is_over()) return;
  const auto parts = Gather(tp_.get(), std::as_bytes(mine));
  std::vector<Real> part(mine.size());
  for (int r = 0; r < tp && !is_over(); ++r) {
    status_ = CopyTo<Real>(parts[r], part);
    for (int64_t n = 0; n < N; ++n) {
      std::copy_n(part.begin() + n * columns, columns, all.begin() + (n * tp + r) * columns);
    }
  }
}

template <typename Real>
void Ranks::Hop(int from, int to, std::span<const Real> values, std::span<Real> into) {
  if (is_over()) return;
  std::vector<Bytes> to_each(position_.topology.pp);
  if (position_.pp_rank == from) to_each[to] = std::as_bytes(values);
  const auto received = Exchange(pp_.get(), to_each);
  if (!is_over() && position_.pp_rank == to) status_ = CopyTo(received[from], into);
}

template <typename Real>
void Ranks::AwaitForward(std::span<Real> input) {
  for (int stage = 0; stage < position_.pp_rank; ++stage) Hop<Real>(stage, stage + 1, {}, input);
}
template <typename Real>
void Ranks::PassForward(std::span<const Real> output) {
  const int last = position_.topology.pp - 1;
  for (int stage = position_.pp_rank; stage < last; ++stage)
    Hop<Real>(stage, stage + 1, output, {});
}
template <typename Real>
void Ranks::AwaitBackward(std::span<Real> gradient) {
  const int last = position_.topology.pp - 1;
  for (int stage = last; stage > position_.pp_rank; --stage)
    Hop<Real>(stage, stage - 1, {}, gradient);
}
template <typename Real>
void Ranks::PassBackward(std::span<const Real> gradient) {
  for (int stage = position_.pp_rank; stage > 0; --stage) Hop<Real>(stage, stage - 1, gradient, {});
}

template <typename Real>
void Ranks::SumOfEnds(std::span<Real> values) {
  if (is_over() || position_.topology.pp == 1) return;
  const bool is_end = position_.is_first_stage() || position_.is_last_stage();
  auto all = Gather(pp_.get(), is_end ? std::as_bytes(values) : Bytes());
  if (is_over() || !is_end) return;
  status_ = AddInOrder<Real>({std::move(all.front()), std::move(all.back())}, values);
}

void Ranks::FromLastStage(float* value) {
  if (is_over() || position_.topology.pp == 1) return;
  const auto all = Gather(pp_.get(), std::as_bytes(std::span(value, 1)));
  if (!is_over()) status_ = CopyTo(all.back(), std::span(value, 1));
}

void Ranks::MeanOverDp(float* value) {
  SumOver(dp_.get(), std::span(value, 1));
  *value /= static_cast<float>(position_.topology.dp);
}

// Each rank adds up its slice and, unless only that is wanted, gives it to the others.
void Ranks::MeanOverDp(std::span<float> values, bool only_slice) {
  const int dp = position_.topology.dp;
  if (is_over() || dp == 1) return;
  const auto slice = [&](int r) {
    const Range range = PartOf(std::ssize(values), r, dp);
    return values.subspan(range.begin, range.size());
  };
  std::vector<Bytes> to_each;
  for (int r = 0; r < dp; ++r) to_each.push_back(std::as_bytes(slice(r)));
  const auto all = Exchange(dp_.get(), to_each);
  const std::span<float> mine = slice(position_.dp_rank);
  if (!is_over()) status_ = AddInOrder(all, mine);
  for (float& value : mine) value /= static_cast<float>(dp);
  if (!only_slice) GatherSlices(values);
}

template <typename T>
void Ranks::GatherSlices(std::span<T> values) {
  const int dp = position_.topology.dp;
  if (is_over() || dp == 1) return;
  const auto slice = [&](int r) {
    const Range range = PartOf(std::ssize(values), r, dp);
    return values.subspan(range.begin, range.size());
  };
  const auto all = Gather(dp_.get(), std::as_bytes(slice(position_.dp_rank)));
  for (int r = 0; r < dp && !is_over(); ++r) status_ = CopyTo(all[r], slice(r));
}

double Ranks::Sum(double value) {
  SumOver(world_.get(), std::span(&value, 1));
  return value;
}

template void Ranks::GatherSlices(std::span<float>);
template void Ranks::GatherSlices(std::span<uint16_t>);

#define GPT_INSTANTIATE(Real)                                                          \
  template void Ranks::SumOverTp(std::span<Real>);                                     \
  template void Ranks::GatherColumns(std::span<const Real>, int64_t, std::span<Real>); \
  template void Ranks::AwaitForward(std::span<Real>);                                  \
  template void Ranks::PassForward(std::span<const Real>);                             \
  template void Ranks::AwaitBackward(std::span<Real>);                                 \
  template void Ranks::PassBackward(std::span<const Real>);                            \
  template void Ranks::SumOfEnds(std::span<Real>);
GPT_INSTANTIATE(float)
GPT_INSTANTIATE(double)
#undef GPT_INSTANTIATE

}  // namespace gpt
