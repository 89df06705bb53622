// SPDX-License-Identifier: Apache-2.0
//
// Keeps a copy of memory up to date: copies the chunks whose digests have changed. VarveStager
// (varve/torch/_stager.py) makes the state of a training safe with it.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/bindings.h"
#include "varve/digest.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

// Source, copy and bytes.
using RegionTuple = std::tuple<uintptr_t, uintptr_t, size_t>;

// The digests of a copy. Thread rule: one thread at a time.
class Stage {
 public:
  // Makes each copy equal to its source. The regions are always the same ones, but for where the
  // sources lie. Returns the bytes that were copied.
  uint64_t Update(const std::vector<RegionTuple>& regions, int num_threads) {
    std::vector<Chunk> chunks;
    for (const auto& [source, copy, bytes] : regions) {
      for (size_t at = 0; at < bytes; at += kChunkBytes) {
        chunks.push_back({reinterpret_cast<const std::byte*>(source) + at,
                          reinterpret_cast<std::byte*>(copy) + at,
                          std::min(kChunkBytes, bytes - at)});
      }
    }
    const nb::gil_scoped_release release;
    digests_.resize(chunks.size());
    std::atomic<size_t> next{0};
    std::atomic<uint64_t> copied{0};
    const auto work = [&] {
      for (size_t i = next++; i < chunks.size(); i = next++) {
        const Chunk& chunk = chunks[i];
        const Digest digest = ComputeDigest(0, {chunk.source, chunk.bytes});
        if (digests_[i] == digest) continue;
        std::memcpy(chunk.copy, chunk.source, chunk.bytes);
        digests_[i] = digest;
        copied += chunk.bytes;
      }
    };
    if (num_threads == 0) num_threads = static_cast<int>(std::thread::hardware_concurrency());
    std::vector<std::jthread> threads;
    try {
      const int helpers = std::min<int>(num_threads, static_cast<int>(chunks.size())) - 1;
      for (int i = 0; i < helpers; ++i) threads.emplace_back(work);
    } catch (const std::system_error&) {
      // The threads that there are do all of it.
    }
    work();
    threads.clear();
    return copied;
  }

 private:
  struct Chunk {
    const std::byte* source;
    std::byte* copy;
    size_t bytes;
  };
  std::vector<std::optional<Digest>> digests_;  // of the copy's chunks. None: never copied
};

}  // namespace

void BindStage(nb::module_& module) {
  nb::class_<Stage>(module, "Stage", "A copy of memory that takes what has changed.")
      .def(nb::init<>())
      .def("update", &Stage::Update, nb::arg("regions"), nb::arg("num_threads"),
           "Makes each copy equal to its source: (source, copy, bytes), each time the same copies "
           "in\n"
           "the same order. Returns how many bytes were copied.");
}

}  // namespace varve::python
