// SPDX-License-Identifier: Apache-2.0
//
// Placements of torch's DTensor on a device mesh.
#include <utility>

#include "trainer_hooks/layouts/axis.h"

namespace varve {
using namespace internal;

namespace {

Status ValidatePlacements(const ShardLayout& layout, std::span<const Placement> placements) {
  VARVE_RETURN_IF_ERROR(ValidateUncut(layout));
  for (size_t i = 0; i < placements.size(); ++i) {
    const Placement& placement = placements[i];
    const std::string what = "placement " + std::to_string(i);
    const Status rank = ValidateRank(placement.mesh);
    if (!rank.ok()) return rank.WithContext(what);
    if (placement.is_strided && !placement.shard_axis.has_value()) {
      return Status::InvalidArgument(what + " is strided, expected an axis that it shards");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<ShardLayout> PlaceOnMesh(ShardLayout layout, std::span<const Placement> placements) {
  VARVE_RETURN_IF_ERROR(ValidatePlacements(layout, placements));
  for (const bool is_strided : {false, true}) {
    for (const Placement& placement : placements) {
      if (!placement.shard_axis.has_value() || placement.is_strided != is_strided) continue;
      VARVE_ASSIGN_OR_RETURN(layout,
                             SplitChunks(std::move(layout), *placement.shard_axis, placement.mesh));
    }
  }
  return layout;
}

}  // namespace varve
