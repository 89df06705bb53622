// SPDX-License-Identifier: Apache-2.0
//
// What the store is measured against: the same bytes by the plainest means. Thread rule: one
// thread at a time; those that take `num_threads` use so many of their own.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "bench/state.h"

namespace varve::bench {

// Writes all bytes one after the other into files of kFileBytes in a new folder, in portions of
// kChunkBytes; each file is synced (fdatasync) when it is full, the folder at the end. kEarly asks
// the system to begin writing every few MiB, as the store does, so that the disk does not idle
// meanwhile.
enum class WriteBack { kAtSync, kEarly };
void WriteRaw(const std::filesystem::path& folder,
              std::span<const std::span<const std::byte>> parts, WriteBack write_back);
std::vector<std::span<const std::byte>> PartsOf(const State& state);

// The files of WriteRaw, opened once, read by pread in portions of kChunkBytes.
class RawReader {
 public:
  explicit RawReader(const std::filesystem::path& folder);
  ~RawReader();
  RawReader(const RawReader&) = delete;
  RawReader& operator=(const RawReader&) = delete;

  // Fills the tensors of `out` in their order.
  void Read(State* out, int num_threads) const;

 private:
  std::vector<int> fds_;
};

// One safetensors file: header and bytes, then fsync of the file and its folder.
void WriteSafetensors(const std::filesystem::path& path, const State& state);

// XXH3-128 of all chunks, as a save computes it.
void DigestPass(const State& state, int num_threads);
// Copies `from` over `to`, which has the same tensors.
void CopyPass(const State& from, State* to, int num_threads);

}  // namespace varve::bench
