// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/rank_part.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes_of.h"
#include "trainer_hooks/group/replica_plan.h"
#include "trainer_hooks/state/item_name.h"

namespace varve::internal {

namespace {

// Some of the elements of a tensor, which is dense if they are not all. It has no names.
StateTensor Cut(const StateTensor& tensor, const HeldTensor& held, const Range& range) {
  StateTensor part{{.dtype = tensor.dtype, .role = tensor.role}, tensor.data, tensor.device};
  ShardLayout layout = held.Layout();
  const bool is_all = range == Range{0, layout.NumLocal()};
  part.layout = CutLayout(std::move(layout), range);
  if (is_all) {
    part.shape = tensor.shape;
    part.strides = tensor.strides;
    return part;
  }
  part.shape = part.layout->LocalShape();
  part.data = static_cast<std::byte*>(tensor.data) + BytesOf(tensor.dtype, range.begin);
  return part;
}

}  // namespace

Result<std::vector<StateTensor>> PartOf(std::span<const StateTensor> tensors,
                                        std::span<const HeldTensor> held,
                                        std::span<const std::optional<Range>> writes,
                                        uint32_t rank) {
  std::set<std::string_view> per_rank;
  for (const HeldTensor& tensor : held) {
    const bool is_new =
        tensor.policy != ReplicaPolicy::kKeepPerRank || per_rank.insert(tensor.name).second;
    if (!is_new) {
      return Status::InvalidArgument(
          "tensor " + std::string(tensor.name) +
          ": a rank has several shards of it, and it is kept per rank, expected one shard");
    }
    if (!DecodeItemName(tensor.name).rank.has_value()) continue;
    return Status::InvalidArgument("tensor " + std::string(tensor.name) +
                                   ": the name is kept for a tensor of a single rank");
  }
  std::vector<StateTensor> parts;
  for (size_t i = 0; i < held.size(); ++i) {
    if (!writes[i].has_value()) continue;
    const bool is_per_rank = per_rank.contains(held[i].name);
    const auto named = [&](std::string_view name) -> Result<std::string> {
      if (is_per_rank && per_rank.contains(name)) return EncodeItemName({name, rank});
      return std::string(name);
    };
    StateTensor part = Cut(tensors[i], held[i], *writes[i]);
    VARVE_ASSIGN_OR_RETURN(part.name, named(held[i].name));
    VARVE_ASSIGN_OR_RETURN(part.derived_from, named(held[i].derived_from));
    if (is_per_rank) part.layout.reset();
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace varve::internal
