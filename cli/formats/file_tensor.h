// SPDX-License-Identifier: Apache-2.0
//
// A tensor in a file, as all readers of files return it. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/input_file.h"
#include "cli/formats/tensor_bytes.h"
#include "varve/tensor.h"

namespace varve::internal::formats {

struct FileTensor : TensorSpec {
  // Where the tensor lies in the parsed bytes. The bytes of a file are not fetched: file->Read
  // reads them. Unused when `bytes` is set.
  std::span<const std::byte> data;
  uint32_t shard = 0;
  std::shared_ptr<const InputFile> file{};
  // Set for a tensor that does not lie in one place of one file as it is.
  std::shared_ptr<TensorBytes> bytes{};
};

}  // namespace varve::internal::formats
