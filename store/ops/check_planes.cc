// SPDX-License-Identifier: Apache-2.0
#include "store/ops/check_planes.h"

#include <algorithm>

namespace varve::internal {

namespace {

SaveBlock ReadBlock(const Database& database, uint64_t save_id, uint32_t number) {
  const auto value = database.Get(Family::kBirths, keys::SaveBlock(save_id, number));
  if (!value.ok() || !value->has_value()) return {};
  Result<SaveBlock> block = DecodeSaveBlock(**value);
  return block.ok() ? *std::move(block) : SaveBlock{};
}

std::string Describe(const CodecTotals& planes, size_t coder) {
  return std::to_string(planes.count) + " live planes of coder " +
         std::string(kStreamCoderNames[coder]) + " in " + std::to_string(planes.stored_bytes) +
         " bytes";
}

}  // namespace

void CheckPlanes(const Database& database, uint64_t save_id, const SaveRecord& record,
                 const std::function<std::optional<uint32_t>(uint32_t)>& live_frame,
                 const std::function<void(std::string)>& error) {
  if (!record.live_coders.has_value()) return;
  CoderTotals found{};
  SaveBlock block;
  for (uint32_t ordinal = 0; ordinal < record.chunks; ++ordinal) {
    if (ordinal % kCountsPerBlock == 0) {
      block = ReadBlock(database, save_id, ordinal / kCountsPerBlock);
    }
    const std::optional<uint32_t> frame_bytes = live_frame(ordinal);
    if (!frame_bytes.has_value()) continue;
    uint64_t plane_bytes = 0;
    const CoderTotals planes = block.PlanesOf(ordinal, 0);
    for (size_t c = 0; c < planes.size(); ++c) {
      found[c].Add(planes[c]);
      plane_bytes += planes[c].stored_bytes;
    }
    if (plane_bytes == 0 || plane_bytes >= *frame_bytes) {
      error("chunk " + std::to_string(save_id) + "/" + std::to_string(ordinal) +
            ": has planes of " + std::to_string(plane_bytes) + " bytes in a frame of " +
            std::to_string(*frame_bytes));
    }
  }
  for (size_t c = 0; c < found.size(); ++c) {
    const CodecTotals& said = (*record.live_coders)[c];
    if (said.count == found[c].count && said.stored_bytes == found[c].stored_bytes) continue;
    error("save " + std::to_string(save_id) + ": says " + Describe(said, c) + ", found " +
          Describe(found[c], c));
  }
}

}  // namespace varve::internal
