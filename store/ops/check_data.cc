// SPDX-License-Identifier: Apache-2.0
#include "store/ops/check_data.h"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "base/seconds_since.h"
#include "base/startable_threads.h"
#include "base/stop.h"
#include "base/util.h"
#include "store/db/frame_graph.h"

namespace varve::internal {

namespace {

constexpr int64_t kProgressMs = 100;  // between two reports

// Stateless. Any thread.
class DataChecker {
 public:
  DataChecker(const StoreImpl& store, const SourcesOfSaves& sources)
      : reader_(store.chunk_reader()), db_(*store.database()), sources_(sources) {}

  // `out` has the raw bytes of the chunk.
  Status Check(const ChunkToCheck& chunk, std::span<std::byte> out, ChunkScratch* scratch) const {
    const ChunkRef& ref = chunk.ref;
    if (ref.kind == ChunkKind::kStored) return CheckStored(ref, out, scratch);
    // The type only matters for derived chunks. The digest decides which 16-bit type it is.
    Status status = reader_.Read(ref, DType::kBF16, out, scratch);
    if (!status.ok() && ref.kind == ChunkKind::kDerived) {
      status = reader_.Read(ref, DType::kF16, out, scratch);
    }
    if (!status.ok() || !chunk.with_source) return status;
    VARVE_ASSIGN_OR_RETURN(const FrameGraph graph, FrameGraph::Fetch(db_, ref.address, nullptr));
    return CompareSources(ref.address, graph.info());
  }

 private:
  Status CheckStored(const ChunkRef& ref, std::span<std::byte> out, ChunkScratch* scratch) const {
    const FrameSource wanted{ref.address, ref.digest};
    VARVE_ASSIGN_OR_RETURN(const FrameGraph graph, reader_.FetchGraph({&wanted, 1}));
    if (graph.info().raw_bytes != out.size()) {
      return Status::Corruption(FrameName(ref.address) + " holds " +
                                std::to_string(graph.info().raw_bytes) + " raw bytes, expected " +
                                std::to_string(out.size()));
    }
    VARVE_RETURN_IF_ERROR(reader_.DecodeInto(graph, {&ref.address, 1}, {&out, 1}, scratch));
    return CompareSources(ref.address, graph.info());
  }

  // A source without an edge may be dropped while the frame needs it.
  Status CompareSources(ChunkAddress address, const FrameInfo& info) const {
    if (sources_.unknown.contains({address.save_id, address.ordinal / kCountsPerBlock})) {
      return Status::Ok();
    }
    const auto name = [](ChunkAddress source, const Digest& digest) {
      return FrameName(source) + " with digest " + ToHex(digest);
    };
    std::vector<std::string> by_frame, by_save;
    for (const FrameSource& source : info.sources()) {
      by_frame.push_back(name(source.address, source.digest));
    }
    const auto [begin, end] = sources_.edges.equal_range(address);
    for (auto edge = begin; edge != end; ++edge) {
      by_save.push_back(name(edge->second.base, edge->second.base_digest));
    }
    const auto [of_frame, of_save] = std::ranges::mismatch(by_frame, by_save);
    if (of_frame == by_frame.end() && of_save == by_save.end()) return Status::Ok();
    const auto named = [](const auto& at, const auto& all) {
      return at == all.end() ? "nothing" : *at;
    };
    return Status::Corruption(FrameName(address) + " is predicted from " +
                              named(of_frame, by_frame) + ", and its save names " +
                              named(of_save, by_save) + " there");
  }

  const ChunkReader& reader_;
  const Database& db_;
  const SourcesOfSaves& sources_;
};

}  // namespace

Result<uint64_t> CheckData(const StoreImpl& store, const CheckOptions& options,
                           const SourcesOfSaves& sources, std::span<const ChunkToCheck> chunks,
                           const std::function<void(const ChunkToCheck&, const Status&)>& error) {
  struct Worker {
    ChunkScratch scratch;
    std::vector<std::byte> out;
  };
  uint64_t total_bytes = 0;
  for (const ChunkToCheck& chunk : chunks) total_bytes += chunk.ref.stored_bytes;
  const StopFlag stop;
  const DataChecker checker(store, sources);
  tbb::enumerable_thread_specific<Worker> workers;
  std::mutex mutex;
  Status lacking;  // guarded by mutex: memory, threads or descriptors to read a chunk
  std::atomic<uint64_t> done{0};
  std::atomic<int64_t> last_report{0};
  tbb::task_arena arena(StartableThreads(store.num_threads()));
  arena.execute([&] {
    tbb::parallel_for(size_t{0}, chunks.size(), [&](size_t i) {
      if (stop.is_set()) return;
      Worker& worker = workers.local();
      const ChunkToCheck& chunk = chunks[i];
      worker.out.resize(chunk.ref.raw_bytes);
      const Status status = checker.Check(chunk, worker.out, &worker.scratch);
      if (IsShortage(status)) {
        const std::lock_guard lock(mutex);
        lacking = status;
      } else if (!status.ok()) {
        error(chunk, status);
      }
      const uint64_t now = done += chunk.ref.stored_bytes;
      if (options.progress == nullptr) return;
      const int64_t ms = NowMs();
      int64_t last = last_report;
      if (ms - last >= kProgressMs && last_report.compare_exchange_strong(last, ms)) {
        options.progress(now, total_bytes);
      }
    });
  });
  VARVE_RETURN_IF_ERROR(lacking);
  VARVE_RETURN_IF_ERROR(stop.Check());
  return done.load();
}

}  // namespace varve::internal
