// SPDX-License-Identifier: Apache-2.0
//
// InfiniTrain's .ckpt file (model.ckpt and optimizer.ckpt alike) as pure functions on bytes:
//
//   u32 magic "CKPT", u32 version = 1, u32 count, then for each tensor
//   u32 name length, name, i8 dtype, u32 ndim, i64 dims[ndim], u64 bytes, data
//
// It is little-endian, without padding and without a checksum, so a changed byte of the data goes
// unnoticed. All functions are stateless.
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

namespace varve::internal::formats {

// Reads a whole file. On success the tensors have distinct names that ValidateName accepts, and
// data of the size that dtype and shape need. Nothing follows the last of them. They point into
// `file`. kInvalidArgument names the offset, what was found and what was expected. If `fetch` is
// set, it is called before a part of `file` is read, but never for the data. Its errors end the
// reading.
Result<std::vector<FileTensor>> ParseCkpt(std::span<const std::byte> file,
                                          const FetchBytes& fetch = {});

// The first returns what comes before the first tensor, the second what comes before the data of a
// tensor. kFailedPrecondition: the format has no such dtype.
std::string BuildCkptHeader(uint32_t num_tensors);
Result<std::string> BuildCkptEntry(const TensorInfo& tensor);

}  // namespace varve::internal::formats
