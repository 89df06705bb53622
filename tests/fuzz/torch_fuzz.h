// SPDX-License-Identifier: Apache-2.0
//
// The body of the fuzz target for files of torch.save, NumPy and DCP, also run by formats_test with
// mutated files. Stateless.
#pragma once

#include <cstddef>
#include <span>

namespace varve::internal::fuzz {

// The first byte says as what the rest is read: a zip archive, a pickle of torch.save, one of DCP,
// or the header of a .npy file.
void ReadHostileFile(std::span<const std::byte> input);

}  // namespace varve::internal::fuzz
