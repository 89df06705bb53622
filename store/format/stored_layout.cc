// SPDX-License-Identifier: Apache-2.0
#include "store/format/stored_layout.h"

#include <vector>

#include "store/format/verified_buffer.h"

namespace varve::internal {

flatbuffers::Offset<fb::ShardLayout> EncodeLayout(const ShardLayout& layout,
                                                  flatbuffers::FlatBufferBuilder* builder) {
  std::vector<flatbuffers::Offset<fb::Axis>> axes;
  for (const auto& segments : layout.axes) {
    std::vector<fb::Segment> out;
    for (const Segment& segment : segments) {
      out.emplace_back(segment.begin, segment.length, segment.is_padding);
    }
    axes.push_back(fb::CreateAxis(*builder, builder->CreateVectorOfStructs(out)));
  }
  const Range flat = layout.flat.value_or(Range{});
  const auto shape = builder->CreateVector(layout.global_shape);
  return fb::CreateShardLayout(*builder, shape, builder->CreateVector(axes),
                               layout.flat.has_value(), flat.begin, flat.end);
}

Result<ShardLayout> DecodeLayout(const fb::ShardLayout& in) {
  ShardLayout layout;
  if (in.global_shape() == nullptr || in.axes() == nullptr) {
    return Status::Corruption("shard layout: without shape or axes");
  }
  if (!AreAligned(in.global_shape())) {
    return Status::Corruption("shard layout: its shape is not aligned");
  }
  layout.global_shape.assign(in.global_shape()->begin(), in.global_shape()->end());
  for (const fb::Axis* axis : *in.axes()) {
    layout.axes.emplace_back();
    if (axis->segments() == nullptr) continue;
    if (!AreAligned(axis->segments())) {
      return Status::Corruption("shard layout: its segments are not aligned");
    }
    for (const fb::Segment* segment : *axis->segments()) {
      layout.axes.back().push_back({segment->begin(), segment->length(), segment->is_padding()});
    }
  }
  if (in.is_flat()) layout.flat = Range{in.flat_begin(), in.flat_end()};
  const Status valid = ValidateLayout(layout);
  if (!valid.ok()) return Status::Corruption("shard layout: " + std::string(valid.message()));
  return layout;
}

}  // namespace varve::internal
