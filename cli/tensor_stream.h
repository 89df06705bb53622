// SPDX-License-Identifier: Apache-2.0
//
// Reads tensors one after the other in bounded memory, however large they are. Pieces are gathered
// in one buffer, read together and handed on in order. So small tensors are read in parallel.
//
//   TensorStream stream(*reader, [&file](std::span<const std::byte> bytes) {
//     return file.Append(bytes);
//   });
//   for (const TensorInfo& tensor : tensors) VARVE_RETURN_IF_ERROR(stream.Add(tensor, ranges));
//   VARVE_RETURN_IF_ERROR(stream.Finish());
//
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/tensor.h"

namespace varve::internal::cli {

class TensorStream {
 public:
  using Sink = std::function<Status(std::span<const std::byte>)>;

  // The reader must outlive the stream.
  TensorStream(const CheckpointReader& reader, Sink sink);

  // Streams the whole tensor, or the box given by one range an axis. Errors come from the reader or
  // the sink, and may be about a tensor that was added before.
  Status Add(const TensorInfo& tensor);
  Status Add(const TensorInfo& tensor, std::span<const Range> ranges);
  // Puts the caller's bytes between the tensors.
  Status AddText(std::string_view text);
  // Hands on what is left in the buffer.
  Status Finish();

 private:
  struct Piece {
    std::string name;
    uint32_t shard = 0;
    std::vector<Range> ranges;
    size_t offset = 0;
    size_t bytes = 0;
  };

  // Bytes that come from no tensor.
  struct Text {
    std::string bytes;
    size_t offset = 0;
  };

  // Makes room in the buffer.
  Result<size_t> Reserve(size_t bytes);
  Status AddPiece(const TensorInfo& tensor, std::vector<Range> ranges);

  const CheckpointReader& reader_;
  const Sink sink_;
  std::vector<Piece> pieces_;
  std::vector<Text> texts_;
  std::vector<std::byte> buffer_;
  size_t used_ = 0;
};

}  // namespace varve::internal::cli
