// SPDX-License-Identifier: Apache-2.0
//
// A copy into memory that is not read again soon, as that of a caller who restores gigabytes: it
// does not load what it overwrites, nor does it push out of the cache what is needed next. Twice as
// fast as memcpy there. Stateless.
#pragma once

#include <cstddef>
#include <span>

namespace varve {

// Precondition: from.size() == to.size(), and they do not overlap.
void CopyPastCache(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace varve
