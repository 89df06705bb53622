// SPDX-License-Identifier: Apache-2.0
//
// Chunks of a tensor in files of torch.distributed.checkpoint, put together to the whole tensor.
// Functions are stateless.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/formats/tensor_bytes.h"
#include "varve/result.h"

namespace varve::internal::cli {

// The strides of a dense tensor in elements, as torch says them: an axis without elements counts as
// one of length 1.
std::vector<int64_t> RowMajor(const std::vector<int64_t>& shape);

// A box of the tensor, and its dense bytes.
struct DcpPiece {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;
  std::shared_ptr<formats::TensorBytes> bytes;
};

// Says whether the pieces hold every element of a tensor of this shape once. `what` is the folder,
// for the error.
Status CheckPieces(const std::string& what, const std::string& tensor,
                   const std::vector<int64_t>& shape, const std::vector<DcpPiece>& pieces);

// Returns the dense bytes of the tensor. CheckPieces was ok.
std::shared_ptr<formats::TensorBytes> JoinPieces(const std::vector<int64_t>& shape,
                                                 uint64_t element_bytes,
                                                 std::vector<DcpPiece> pieces);

}  // namespace varve::internal::cli
