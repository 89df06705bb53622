// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a training exchange. Every sum is taken in the order of the ranks, so that all
// get the same bits, every time. Where a rank is alone in a dimension of the topology, nothing
// happens.
//
// An error of the connection is final. After it all calls do nothing, their results are worthless,
// and status() says why. A trainer looks there once a step.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpt/topology.h"
#include "varve/rank_group.h"

namespace gpt {

class Ranks {
 public:
  // Makes one rank alone.
  Ranks() = default;
  // Collective. The topology has as many ranks as `world`.
  static varve::Result<std::unique_ptr<Ranks>> Make(std::unique_ptr<varve::RankGroup> world,
                                                    const Topology& topology);

  const Position& position() const { return position_; }
  int rank() const { return world_ == nullptr ? 0 : world_->rank(); }
  const varve::Status& status() const { return status_; }
  // Returns another group of all ranks, for saves alone. Null = one rank alone.
  varve::RankGroup* for_saves() const { return saves_.get(); }

  // Tensor parallel: adds up the values of the ranks, element by element.
  template <typename Real>
  void SumOverTp(std::span<Real> values);
  // Tensor parallel: the columns of each rank side by side. `mine` is (N, columns), `all` (N, tp *
  // columns).
  template <typename Real>
  void GatherColumns(std::span<const Real> mine, int64_t N, std::span<Real> all);

  // Pipeline: the calls before and after a stage works on a batch, forward and backward. All stages
  // make all four, with as many values.
  template <typename Real>
  void AwaitForward(std::span<Real> input);
  template <typename Real>
  void PassForward(std::span<const Real> output);
  template <typename Real>
  void AwaitBackward(std::span<Real> gradient);
  template <typename Real>
  void PassBackward(std::span<const Real> gradient);
  // Pipeline: returns the sum of the first and the last stage's values. The other stages pass
  // nothing.
  template <typename Real>
  void SumOfEnds(std::span<Real> values);
  // Pipeline: what the last stage has.
  void FromLastStage(float* value);

  // Data parallel: computes the mean over the copies. With `only_slice` it is right only for this
  // rank's slice of the optimizer's state, and the rest is worthless.
  void MeanOverDp(std::span<float> values, bool only_slice);
  void MeanOverDp(float* value);
  // Data parallel: each rank has the right values in its slice. Afterwards all have all of them.
  template <typename T>
  void GatherSlices(std::span<T> values);

  // Over all ranks.
  double Sum(double value);

 private:
  using Bytes = std::span<const std::byte>;

  template <typename Real>
  void SumOver(varve::RankGroup* group, std::span<Real> values);
  // Sends from one stage to another. The other stages only take part in the call.
  template <typename Real>
  void Hop(int from, int to, std::span<const Real> values, std::span<Real> into);
  // Returns what each rank of a group passes, or nothing after an error.
  std::vector<std::vector<std::byte>> Gather(varve::RankGroup* group, Bytes mine);
  std::vector<std::vector<std::byte>> Exchange(varve::RankGroup* group,
                                               const std::vector<Bytes>& to_each);
  std::vector<std::vector<std::byte>> Keep(
      varve::Result<std::vector<std::vector<std::byte>>> received);
  bool is_over() const { return !status_.ok(); }

  Position position_;
  std::unique_ptr<varve::RankGroup> world_, tp_, pp_, dp_, saves_;
  varve::Status status_;
};

}  // namespace gpt
