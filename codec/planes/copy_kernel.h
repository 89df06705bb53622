// SPDX-License-Identifier: Apache-2.0
//
// A copy into memory that is not read again soon, such as the memory of a caller who restores
// gigabytes. It does not load what it overwrites, and leaves in the cache what is needed next. It
// is twice as fast as memcpy for that. Stateless.
#pragma once

#include <cstddef>
#include <span>

namespace varve::internal {

// Precondition: from.size() == to.size(), and they do not overlap.
void CopyPastCache(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace varve::internal
