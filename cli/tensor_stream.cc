// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_stream.h"

#include <algorithm>
#include <utility>

#include "cli/slice.h"

namespace varve::internal::cli {
namespace {

constexpr size_t kBufferBytes = size_t{64} << 20;
constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

}  // namespace

TensorStream::TensorStream(const CheckpointReader& reader, Sink sink)
    : reader_(reader), sink_(std::move(sink)) {}

Status TensorStream::Add(const TensorInfo& tensor) {
  std::vector<Range> ranges;
  for (const int64_t size : tensor.shape) ranges.push_back({0, size});
  return Add(tensor, ranges);
}

Status TensorStream::Add(const TensorInfo& tensor, std::span<const Range> ranges) {
  for (std::vector<Range>& piece : SplitIntoPieces(tensor.dtype, ranges, kPieceBytes)) {
    VARVE_RETURN_IF_ERROR(AddPiece(tensor, std::move(piece)));
  }
  return Status::Ok();
}

Status TensorStream::AddText(std::string_view text) {
  VARVE_ASSIGN_OR_RETURN(const size_t offset, Reserve(text.size()));
  texts_.push_back({std::string(text), offset});
  return Status::Ok();
}

Result<size_t> TensorStream::Reserve(size_t bytes) {
  if (used_ + bytes > kBufferBytes) VARVE_RETURN_IF_ERROR(Finish());
  return std::exchange(used_, used_ + bytes);
}

Status TensorStream::AddPiece(const TensorInfo& tensor, std::vector<Range> ranges) {
  const uint64_t bits = static_cast<uint64_t>(DTypeBits(tensor.dtype));
  const uint64_t total_bits = static_cast<uint64_t>(NumElementsOf(ranges)) * bits;
  if (total_bits % 8 != 0) {
    return Status::InvalidArgument("tensor \"" + tensor.name + "\": a slice of " +
                                   std::string(DTypeName(tensor.dtype)) +
                                   " elements must fill whole bytes");
  }
  const auto bytes = static_cast<size_t>(total_bits / 8);
  VARVE_ASSIGN_OR_RETURN(const size_t offset, Reserve(bytes));
  pieces_.push_back({tensor.name, tensor.shard, std::move(ranges), offset, bytes});
  return Status::Ok();
}

Status TensorStream::Finish() {
  if (buffer_.size() < used_) buffer_.resize(used_);
  const std::span<std::byte> buffer(buffer_);
  std::vector<ReadRequest> requests;
  for (const Piece& piece : pieces_) {
    const auto out = buffer.subspan(piece.offset, piece.bytes);
    requests.push_back(ReadRequest::Shard(piece.name, piece.shard, out, piece.ranges));
  }
  VARVE_RETURN_IF_ERROR(reader_.ReadMany(requests));
  for (const Text& text : texts_) {
    std::copy_n(std::as_bytes(std::span(text.bytes)).data(), text.bytes.size(),
                buffer.data() + text.offset);
  }
  VARVE_RETURN_IF_ERROR(sink_(buffer.first(used_)));
  pieces_.clear();
  texts_.clear();
  used_ = 0;
  return Status::Ok();
}

}  // namespace varve::internal::cli
