// SPDX-License-Identifier: Apache-2.0
//
// A block of a table of frames, as it lies on the disk: entries, the offsets of some of them
// ("restarts"), one byte for the compression and a checksum. Format: RocksDB's
// table/block_based/block_builder.cc, of version 7.8. Stateless, any thread.
//
// RocksDB trusts the entries of a block whose checksum it did not verify. If a length or a key is
// damaged, it reads outside the block, or an assertion ends the process.
#pragma once

#include <cstddef>
#include <span>

namespace varve::internal {

// The compression and the checksum at the end of each block.
inline constexpr size_t kBlockTrailerBytes = 5;

// True if RocksDB can look for a frame in the block without harm, whatever the frames are: the
// entries and restarts fit one another, and each key is that of a frame, in order. It looks at the
// keys only, so it costs nothing beside reading the frames. It also refuses sound blocks that are
// not as varve writes them, such as a compressed one.
bool HasSoundEntries(std::span<const std::byte> block);

}  // namespace varve::internal
