// SPDX-License-Identifier: Apache-2.0
//
// The safetensors format as pure functions on bytes: 8 bytes little-endian header length, a JSON
// header, then the tensors' bytes. Parsing takes hostile files. There is one error for each way in
// which a header can lie, and a parsed header is safe to use. Building writes what the
// `safetensors` package writes, byte for byte. All functions are stateless.
//
//   VARVE_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensors(file.bytes()));
//   for (const SafetensorsTensor& t : header.tensors)
//     Use(t.name, file.bytes().subspan(header.data_begin + t.begin, t.end - t.begin));
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/input_file.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal::formats {

// The format's own limit on the JSON header.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// A tensor of a file. `begin` and `end` count bytes from the end of the header.
struct SafetensorsTensor : TensorSpec {
  uint64_t begin = 0;
  uint64_t end = 0;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  SafetensorsMetadata metadata;            // `__metadata__`
  uint64_t data_begin = 0;                 // offset in the file at which the header ends
};

// Reads the header of a whole file. On success the tensors lie in the file one after the other
// without hole, overlap or rest. Each has the bytes that its shape needs, and a distinct name that
// ValidateName accepts. kInvalidArgument says what is wrong otherwise. If `fetch` is set, it is
// called before a part of the header is read. Its errors end the reading.
Result<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file,
                                           const FetchBytes& fetch = {});

// Puts tensors into the order of the `safetensors` package: wide types first, then by name, so that
// every tensor is aligned to its own element.
void SortForSafetensors(std::vector<TensorInfo>* tensors);

// Returns the first bytes of a file, up to the start of the first tensor, for tensors that follow
// in the given order. kInvalidArgument: the header would exceed the format's limit.
Result<std::string> BuildSafetensorsHeader(std::span<const TensorInfo> tensors,
                                           const SafetensorsMetadata& metadata);

}  // namespace varve::internal::formats
