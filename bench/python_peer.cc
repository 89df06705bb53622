// SPDX-License-Identifier: Apache-2.0
//
// python_peer FOLDER STATE NEXT_STATE: the C++ side of bench/peers.py. It holds the tensors of a
// safetensors file in memory, does what a line of standard input says, and answers with one line:
// the milliseconds that it took, and what was stored. NEXT_STATE is the same state some steps
// later.
//
//   new           opens an empty store in place of the one before
//   change N      changes N % of the state: 0, 1 or 100
//   digest        digests all chunks
//   save STEP     from Begin to the end of Commit. Second number: stored bytes
//   load STEP     OpenCheckpoint and one read of all tensors into other memory
//   hooks         opens an empty store with an AsyncCheckpointer
//   begin STEP, await, wait    BeginSave, AwaitStaged, Wait
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#include "bench/baselines.h"
#include "bench/bench_params.h"
#include "bench/measure.h"
#include "bench/state.h"
#include "bench/workplace.h"
#include "varve/async_checkpointer.h"

namespace varve::internal::bench {
namespace {

class Peer {
 public:
  Peer(const char* folder, const char* file, const char* next_file)
      : place_(folder),
        next_(LoadTrained(next_file, 0)),
        state_(LoadTrained(file, 0)),
        other_(state_.EmptyCopy()) {
    for (const StateTensor& t : state_.tensors) {
      if (t.name.starts_with("model.")) continue;
      training_.tensors.push_back(
          {{.name = t.name, .dtype = t.dtype, .shape = t.shape}, t.data.data()});
    }
  }

  // Prints the answer to one line.
  void Do(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    uint64_t number = 0;
    words >> command >> number;
    uint64_t stored = 0;
    const double seconds = Seconds([&] { stored = Run(command, number); });
    std::printf("%.4f %llu\n", seconds * 1e3, static_cast<unsigned long long>(stored));
    std::fflush(stdout);
  }

 private:
  uint64_t Run(const std::string& command, uint64_t number) {
    if (command == "save") return Save(store_.get(), state_, number).stored_bytes;
    if (command == "load") {
      Restore(*store_, number, &other_);
    } else if (command == "digest") {
      DigestPass(state_, Params().num_threads);
    } else if (command == "change") {
      Change(number);
    } else if (command == "new") {
      store_.reset();
      place_.Remove(path_);
      path_ = place_.NewPath("store");
      store_ = Must(Store::Create(path_));
    } else if (command == "hooks") {
      hooks_.reset();
      place_.Remove(hooks_path_);
      hooks_path_ = place_.NewPath("hooks");
      hooks_ = Must(AsyncCheckpointer::Open(hooks_path_));
    } else if (command == "begin") {
      Require(hooks_->BeginSave(number, training_).status());
    } else if (command == "await") {
      Require(hooks_->AwaitStaged());
    } else if (command == "wait") {
      Require(hooks_->Wait());
    } else {
      Fail("python_peer: unknown command: " + command);
    }
    return 0;
  }

  void Change(uint64_t percent) {
    ++changes_;
    if (percent == 100) {
      std::swap_ranges(state_.memory.get(), state_.memory.get() + MemoryBytes(),
                       next_.memory.get());
    }
    if (percent != 1) return;
    // In moments only, so that weights stay the rounded copies of their masters.
    uint64_t left = (state_.bytes() / kChunkBytes + 99) / 100;
    for (const StateTensor& t : state_.tensors) {
      if (left == 0) break;
      if (!t.name.starts_with("exp_avg.") || t.data.size() < kChunkBytes) continue;
      FillNoise(Mix(changes_, left--), t.data.first(kChunkBytes));
    }
  }

  // All tensors lie in one piece of memory, the last at its end.
  size_t MemoryBytes() const {
    const std::span<const std::byte> last = state_.tensors.back().data;
    return static_cast<size_t>(last.data() + last.size() - state_.memory.get());
  }

  Workplace place_;
  State next_;
  State state_;
  State other_;
  TrainingState training_;
  uint64_t changes_ = 0;
  std::filesystem::path path_;
  std::filesystem::path hooks_path_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<AsyncCheckpointer> hooks_;
};

}  // namespace
}  // namespace varve::internal::bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr,
                 "usage: python_peer FOLDER STATE NEXT_STATE, as bench/peers.py starts it\n");
    return 2;
  }
  varve::internal::bench::Peer peer(argv[1], argv[2], argv[3]);
  for (std::string line; std::getline(std::cin, line);) peer.Do(line);
  return 0;
}
