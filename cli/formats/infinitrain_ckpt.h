// SPDX-License-Identifier: Apache-2.0
//
// InfiniTrain's .ckpt file (model.ckpt and optimizer.ckpt alike) as pure functions on bytes:
//
//   u32 magic "CKPT", u32 version = 1, u32 count, then for each tensor
//   u32 name length, name, i8 dtype, u32 ndim, i64 dims[ndim], u64 bytes, data
//
// Little-endian, without padding and without a checksum: a changed byte of the data cannot be told.
// All functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/file_tensor.h"
#include "cli/formats/input_file.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::formats {

// Reads a whole file. When it is ok, the tensors have distinct names that ValidateName accepts,
// data of the size that dtype and shape need, and nothing follows the last of them. They point into
// `file`. kInvalidArgument names the offset, what was found and what was expected.
// `fetch`, unless empty, is called before a part of `file` is read, and never for the data; its
// errors end the reading.
Result<std::vector<FileTensor>> ParseCkpt(std::span<const std::byte> file,
                                          const FetchBytes& fetch = {});

// What comes before the first tensor, and before the data of each. kFailedPrecondition: the format
// has no such dtype.
std::string BuildCkptHeader(uint32_t num_tensors);
Result<std::string> BuildCkptEntry(const TensorInfo& tensor);

}  // namespace varve::formats
