// SPDX-License-Identifier: Apache-2.0
//
// Reads hostile archives, pickles and headers. Nothing may crash, hang or touch memory outside the
// input. Any Status is fine.
#include "tests/fuzz/torch_fuzz.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "cli/formats/dcp_metadata.h"
#include "cli/formats/npy.h"
#include "cli/formats/pickle.h"
#include "cli/formats/torch_tree.h"
#include "cli/formats/torch_types.h"
#include "cli/formats/zip_file.h"

namespace varve::internal::fuzz {
namespace {

using namespace formats;

void ReadArchive(std::span<const std::byte> bytes) {
  const auto entries = ParseZip(bytes);
  if (!entries.ok()) return;
  for (const ZipEntry& entry : *entries) {
    const bool is_inside = entry.data.empty() ||
                           (entry.data.data() >= bytes.data() &&
                            entry.data.data() + entry.data.size() <= bytes.data() + bytes.size());
    if (!is_inside) std::abort();
  }
}

void ReadPickle(std::span<const std::byte> bytes) {
  const auto pickle = ParsePickle(bytes, IsTorchGlobal);
  if (!pickle.ok()) return;
  const auto tree = ReadTorchTree(*pickle, pickle->root);
  if (!tree.ok()) return;
  for (const NamedTorchTensor& tensor : tree->tensors) {
    if (tensor.begin > tensor.end || (tensor.num_bytes > 0 && tensor.end > tensor.storage_bytes)) {
      std::abort();
    }
  }
}

}  // namespace

void ReadHostileFile(std::span<const std::byte> input) {
  if (input.empty()) return;
  // A block of the exact size, so that the address sanitizer sees any byte past the end.
  const size_t size = input.size() - 1;
  const std::unique_ptr<std::byte[]> block(new std::byte[size]);
  std::copy(input.begin() + 1, input.end(), block.get());
  const std::span<const std::byte> bytes(block.get(), size);
  switch (std::to_integer<int>(input[0]) % 4) {
    case 0:
      return ReadArchive(bytes);
    case 1:
      return ReadPickle(bytes);
    case 2:
      return ParseDcpMetadata(bytes).status().IgnoreError();
    default:
      return ParseNpyHeader(bytes).status().IgnoreError();
  }
}

}  // namespace varve::internal::fuzz
