// SPDX-License-Identifier: Apache-2.0
#include "store/save/validate_view.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/util.h"
#include "store/shards/overlap.h"
#include "store/shards/strides.h"

namespace varve::internal {

namespace {

constexpr size_t kMaxItemBytes = size_t{64} << 20;

Status ValidateViewLayout(const TensorView& view) {
  VARVE_RETURN_IF_ERROR(ValidateLayout(*view.layout));
  VARVE_RETURN_IF_ERROR(NumBytes(view.dtype, view.layout->global_shape).status());
  const std::vector<int64_t> local = view.layout->LocalShape();
  if (std::equal(local.begin(), local.end(), view.shape.begin(), view.shape.end())) {
    return Status::Ok();
  }
  return Status::InvalidArgument("the shape is " + ShapeName(view.shape) + ", that of its layout " +
                                 ToString(*view.layout) + " is " + ShapeName(local) +
                                 "; give the shape that the layout has");
}

// Elements of less than a byte can be moved by whole bytes only: what begins or ends within one
// could not be read back as a part of the tensor.
Status ValidateWholeBytes(const TensorView& view) {
  const auto bits = static_cast<uint64_t>(DTypeBits(view.dtype));
  if (bits % 8 == 0) return Status::Ok();
  const Overlap overlap(*view.layout, ShardLayout::Whole(view.layout->global_shape));
  if (overlap.IsOnWholeBytes(bits)) return Status::Ok();
  return Status::InvalidArgument("its layout " + ToString(*view.layout) +
                                 " cuts it within a byte, in which several " +
                                 std::string(DTypeName(view.dtype)) +
                                 " elements lie: cut it so that each run of elements fills whole "
                                 "bytes, or save the bytes as U8");
}

}  // namespace

Status ValidateView(const TensorView& view, bool has_data) {
  VARVE_RETURN_IF_ERROR(ValidateName("tensor name", view.name));
  const auto tensor = [&] { return "tensor " + std::string(view.name); };
  if (DTypeBits(view.dtype) == 0) {
    return Status::InvalidArgument(tensor() + ": dtype " +
                                   std::to_string(static_cast<int>(view.dtype)) +
                                   " is unknown; use one of varve::DType");
  }
  const Result<uint64_t> bytes = NumBytes(view.dtype, view.shape);
  if (!bytes.ok()) return bytes.status().WithContext(tensor());
  if (view.shard == kAllShards) {
    return Status::InvalidArgument(tensor() + ": shard number " + std::to_string(view.shard) +
                                   " is reserved; use a smaller number");
  }
  if (view.layout != nullptr) {
    Status layout = ValidateViewLayout(view);
    // What another store has already is copied as it is.
    if (layout.ok() && has_data) layout = ValidateWholeBytes(view);
    if (!layout.ok()) return layout.WithContext(tensor());
  }
  if (has_data && *bytes > 0 && view.data == nullptr) {
    return Status::InvalidArgument(tensor() + ": data is null, expected " + std::to_string(*bytes) +
                                   " bytes");
  }
  if (!view.strides.empty() && view.strides.size() != view.shape.size()) {
    return Status::InvalidArgument(
        tensor() + ": " + std::to_string(view.strides.size()) + " strides for " +
        std::to_string(view.shape.size()) +
        " axes; give one for each axis, or none if the elements are dense");
  }
  if (!IsDense(view.shape, view.strides) && DTypeBits(view.dtype) % 8 != 0) {
    return Status::InvalidArgument(
        tensor() + ": " + std::string(DTypeName(view.dtype)) +
        " tensors must be dense; copy the elements into dense memory first");
  }
  return Status::Ok();
}

Status ValidateItem(std::string_view name, std::span<const std::byte> value) {
  VARVE_RETURN_IF_ERROR(ValidateName("item name", name));
  if (value.size() > kMaxItemBytes) {
    return Status::InvalidArgument("item " + std::string(name) + " has " +
                                   std::to_string(value.size()) +
                                   " bytes, at most 64 MiB fit; save it as a U8 tensor");
  }
  return Status::Ok();
}

}  // namespace varve::internal
