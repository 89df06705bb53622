// SPDX-License-Identifier: Apache-2.0
#include "bench/baselines.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "base/digest.h"
#include "bench/bench_params.h"
#include "bench/workplace.h"
#include "cli/formats/safetensors.h"

namespace varve::internal::bench {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void FailWithErrno(const char* what, const fs::path& path) {
  Fail(std::string(what) + " " + path.string() + ": " + std::strerror(errno));
}

int Open(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) FailWithErrno("open", path);
  return fd;
}

void WriteAll(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), kChunkBytes));
    if (n < 0) FailWithErrno("write", path);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void SyncFolder(const fs::path& folder) {
  const int fd = Open(folder, O_RDONLY | O_DIRECTORY);
  if (::fsync(fd) != 0) FailWithErrno("fsync", folder);
  ::close(fd);
}

// Calls work(i) for each i below n, on threads that take the next i when they are free.
void InParallel(int num_threads, size_t n, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < n; i = next++) work(i);
    });
  }
}

struct Chunk {
  size_t tensor = 0;
  size_t offset = 0;
  size_t bytes = 0;
};

std::vector<Chunk> ChunksOf(const State& state) {
  std::vector<Chunk> chunks;
  for (size_t t = 0; t < state.tensors.size(); ++t) {
    const StateTensor& tensor = state.tensors[t];
    const size_t step = kChunkBytes / 32 * static_cast<size_t>(DTypeBits(tensor.dtype));
    for (size_t at = 0; at < tensor.data.size(); at += step) {
      chunks.push_back({t, at, std::min(step, tensor.data.size() - at)});
    }
  }
  return chunks;
}

}  // namespace

std::vector<std::span<const std::byte>> PartsOf(const State& state) {
  std::vector<std::span<const std::byte>> parts;
  for (const StateTensor& tensor : state.tensors) parts.emplace_back(tensor.data);
  return parts;
}

void WriteRaw(const fs::path& folder, std::span<const std::span<const std::byte>> parts,
              WriteBack write_back) {
  constexpr size_t kEarlyBytes = 8 * kMiB;
  fs::create_directory(folder);
  int number = 0;
  int fd = -1;
  size_t room = 0;
  fs::path path;
  const auto finish = [&] {
    if (fd >= 0 && ::fdatasync(fd) != 0) FailWithErrno("fdatasync", path);
    if (fd >= 0) ::close(fd);
  };
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      if (room == 0) {
        finish();
        path = folder / std::to_string(number++);
        fd = Open(path, O_WRONLY | O_CREAT | O_EXCL);
        room = kFileBytes;
      }
      const size_t n = std::min({part.size(), room, kEarlyBytes});
      WriteAll(fd, part.first(n), path);
      if (write_back == WriteBack::kEarly) {
        ::sync_file_range(fd, static_cast<off_t>(kFileBytes - room), static_cast<off_t>(n),
                          SYNC_FILE_RANGE_WRITE);
      }
      part = part.subspan(n);
      room -= n;
    }
  }
  finish();
  SyncFolder(folder);
}

RawReader::RawReader(const fs::path& folder) {
  for (int number = 0; fs::exists(folder / std::to_string(number)); ++number) {
    fds_.push_back(Open(folder / std::to_string(number), O_RDONLY));
  }
}

RawReader::~RawReader() {
  for (const int fd : fds_) ::close(fd);
}

void RawReader::Read(State* out, int num_threads) const {
  struct Portion {
    std::byte* to;
    uint64_t from;  // in all files taken as one
    size_t bytes;
  };
  std::vector<Portion> portions;
  uint64_t from = 0;
  for (const StateTensor& tensor : out->tensors) {
    for (size_t at = 0; at < tensor.data.size();) {
      const size_t n = std::min<uint64_t>(
          {kChunkBytes, tensor.data.size() - at, kFileBytes - from % kFileBytes});
      portions.push_back({tensor.data.data() + at, from, n});
      at += n;
      from += n;
    }
  }
  InParallel(num_threads, portions.size(), [&](size_t i) {
    const Portion& portion = portions[i];
    const int fd = fds_[portion.from / kFileBytes];
    const auto at = static_cast<off_t>(portion.from % kFileBytes);
    if (::pread(fd, portion.to, portion.bytes, at) != static_cast<ssize_t>(portion.bytes)) {
      Fail("pread came back short");
    }
  });
}

void WriteSafetensors(const fs::path& path, const State& state) {
  std::vector<TensorInfo> infos;
  for (const StateTensor& tensor : state.tensors) {
    TensorInfo& info = infos.emplace_back();
    info.name = tensor.name;
    info.dtype = tensor.dtype;
    info.shape = tensor.shape;
    info.logical_bytes = tensor.data.size();
  }
  const std::string header = Must(formats::BuildSafetensorsHeader(infos, {}));
  const int fd = Open(path, O_WRONLY | O_CREAT | O_EXCL);
  WriteAll(fd, std::as_bytes(std::span(header)), path);
  for (const StateTensor& tensor : state.tensors) WriteAll(fd, tensor.data, path);
  if (::fsync(fd) != 0) FailWithErrno("fsync", path);
  ::close(fd);
  SyncFolder(path.parent_path());
}

void DigestPass(const State& state, int num_threads) {
  const std::vector<Chunk> chunks = ChunksOf(state);
  std::atomic<uint64_t> all{0};  // keeps the work from being optimised away
  InParallel(num_threads, chunks.size(), [&](size_t i) {
    const Chunk& chunk = chunks[i];
    all += ComputeDigest(1, state.tensors[chunk.tensor].data.subspan(chunk.offset, chunk.bytes)).lo;
  });
  if (all == 1) std::fputc('\n', stderr);
}

void CopyPass(const State& from, State* to, int num_threads) {
  const std::vector<Chunk> chunks = ChunksOf(from);
  InParallel(num_threads, chunks.size(), [&](size_t i) {
    const Chunk& chunk = chunks[i];
    std::memcpy(to->tensors[chunk.tensor].data.data() + chunk.offset,
                from.tensors[chunk.tensor].data.data() + chunk.offset, chunk.bytes);
  });
}

}  // namespace varve::internal::bench
