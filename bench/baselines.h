// SPDX-License-Identifier: Apache-2.0
//
// What the store is compared with: writing the same bytes by the plainest means. Thread rule: one
// thread at a time. Functions with `num_threads` use that many threads of their own.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "bench/state.h"

namespace varve::internal::bench {

// Writes all bytes one after the other into files of kFileBytes in a new folder, in portions of
// kChunkBytes. Each file is synced (fdatasync) when it is full, and the folder at the end. As the
// store does, kEarly asks the system every few MiB to start writing, so that the disk does not
// idle.
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

// Writes one safetensors file, header and bytes, then syncs the file and its folder.
void WriteSafetensors(const std::filesystem::path& path, const State& state);

// XXH3-128 of all chunks, as a save computes it.
void DigestPass(const State& state, int num_threads);
// Copies `from` over `to`, which has the same tensors.
void CopyPass(const State& from, State* to, int num_threads);

}  // namespace varve::internal::bench
