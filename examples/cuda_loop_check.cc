// SPDX-License-Identifier: Apache-2.0
#include "examples/cuda_loop_check.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "examples/cuda_example.h"
#include "examples/cuda_loop_kernels.h"
#include "varve/async_checkpointer.h"
#include "varve/cuda.h"
#include "varve/load.h"

namespace cuda_example {
namespace {

using varve::AsyncCheckpointer;
using varve::CudaTensorSource;
using varve::Result;
using varve::Status;

// Tensors on the device, and on the host what they must hold.
class Tensors {
 public:
  Status Init() {
    // Sizes around those of chunks and of what is digested on the host. Each starts one word
    // further behind an aligned address.
    constexpr uint64_t kMiWords = uint64_t{1} << 18;
    for (const uint64_t words :
         {uint64_t{1}, uint64_t{60}, uint64_t{61}, uint64_t{1024}, uint64_t{1025}, kMiWords - 1,
          kMiWords, kMiWords + 3, 5 * kMiWords + 77, 16 * kMiWords, 3 * kMiWords + 64}) {
      const size_t i = memories_.size();
      VARVE_ASSIGN_OR_RETURN(Memory memory, Allocate(4 * (words + i)));
      words_.push_back(reinterpret_cast<uint32_t*>(memory.get()) + i);
      memories_.push_back(std::move(memory));
      expected_.emplace_back(words);
      loaded_.emplace_back(words);
      const varve::StateTensor tensor = {
          {.name = "tensor." + std::to_string(i), .shape = {static_cast<int64_t>(words)}}};
      state_.tensors.push_back(tensor);
      state_.tensors.back().data = words_.back();
      state_.tensors.back().device = 0;
      on_host_.tensors.push_back(tensor);
      on_host_.tensors.back().data = loaded_.back().data();
    }
    return Status::Ok();
  }
  const varve::TrainingState& state() const { return state_; }

  Status Overwrite(const Round& round, cudaStream_t stream) const {
    for (size_t t = 0; t < words_.size(); ++t) {
      CUDA_OK(cuda_example::Overwrite(round, t, words_[t], expected_[t].size(), stream));
    }
    return Status::Ok();
  }
  // Applies the same to the expected values.
  void Expect(const Round& round) {
    for (size_t t = 0; t < expected_.size(); ++t) {
      std::vector<uint32_t>& words = expected_[t];
      for (uint64_t begin = 0; begin < words.size(); begin += Round::kBlockWords) {
        if (!round.Overwrites(t, begin / Round::kBlockWords)) continue;
        const uint64_t end = std::min<uint64_t>(begin + round.words, words.size());
        for (uint64_t i = begin; i < end; ++i) words[i] = round.Word(t, i);
      }
    }
  }
  // The step is what is expected.
  Status Compare(const varve::Store& store, uint64_t step) {
    VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint("main", step));
    VARVE_RETURN_IF_ERROR(LoadState(*reader, {}, &on_host_).status());
    for (size_t t = 0; t < expected_.size(); ++t) {
      const auto [found, wanted] = std::ranges::mismatch(loaded_[t], expected_[t]);
      if (found == loaded_[t].end()) continue;
      return Status::Corruption("step " + std::to_string(step) + ", " + state_.tensors[t].name +
                                ", word " + std::to_string(found - loaded_[t].begin()) +
                                ": not what the tensor held at BeginSave");
    }
    return Status::Ok();
  }

 private:
  std::vector<Memory> memories_;
  std::vector<uint32_t*> words_;
  std::vector<std::vector<uint32_t>> expected_;
  std::vector<std::vector<uint32_t>> loaded_;
  varve::TrainingState state_;    // on the device
  varve::TrainingState on_host_;  // in loaded_
};

// How much memory a checkpointer has.
struct Setting {
  const char* what;
  uint64_t device_bytes;
  uint64_t host_bytes;  // 0: as much as it needs
};

Result<std::unique_ptr<AsyncCheckpointer>> Open(const std::string& path, const Setting& setting,
                                                std::shared_ptr<CudaTensorSource> source,
                                                bool saves_will_fail) {
  varve::CheckpointerOptions options = {.staging_budget_bytes = setting.host_bytes,
                                        .store = {.compression = varve::Compression::kNone},
                                        .devices = std::move(source),
                                        .failure_is_fatal = !saves_will_fail};
  if (!saves_will_fail) options.retention = varve::RetentionPolicy{.keep_last = 2};
  return AsyncCheckpointer::Open(path, options);
}

// Saves a step and overwrites its tensors as soon as that is allowed.
Status SaveAndOverwrite(uint64_t step, const Tensors& tensors, const Round& next,
                        AsyncCheckpointer* checkpointer, const CudaTensorSource& source,
                        cudaStream_t stream, cudaStream_t other) {
  if (step % 3 == 0) {
    VARVE_RETURN_IF_ERROR(checkpointer->Save(step, tensors.state()).status());
    return tensors.Overwrite(next, stream);
  }
  VARVE_RETURN_IF_ERROR(checkpointer->BeginSave(step, tensors.state()).status());
  // Waits as long as a step may last. Every other time it does not wait, otherwise up to much
  // longer than the copies.
  if (step % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(Mix(step, 7) % 4'000));
  VARVE_RETURN_IF_ERROR(checkpointer->AwaitStaged());
  if (step % 3 == 1) return tensors.Overwrite(next, stream);
  VARVE_ASSIGN_OR_RETURN(const cudaEvent_t released, source.released(0));
  CUDA_OK(cudaStreamWaitEvent(other, released, 0));
  VARVE_RETURN_IF_ERROR(tensors.Overwrite(next, other));
  VARVE_ASSIGN_OR_RETURN(const Event overwritten, MakeEvent());
  CUDA_OK(cudaEventRecord(overwritten.get(), other));
  CUDA_OK(cudaStreamWaitEvent(stream, overwritten.get(), 0));  // the next save is behind it
  return Status::Ok();
}

Status KeepContract(const std::string& path, const Setting& setting, int rounds) {
  constexpr double kShares[] = {1, 0.01, 0.5, 0, 0.1};
  VARVE_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
  VARVE_ASSIGN_OR_RETURN(const Stream other, MakeStream());
  Tensors tensors;
  VARVE_RETURN_IF_ERROR(tensors.Init());
  VARVE_ASSIGN_OR_RETURN(
      auto source, CudaTensorSource::Create(
                       {.streams = {{0, stream.get()}}, .staging_bytes = setting.device_bytes}));
  VARVE_ASSIGN_OR_RETURN(auto checkpointer, Open(path, setting, source, /*saves_will_fail=*/false));
  VARVE_RETURN_IF_ERROR(checkpointer->Prewarm(tensors.state()));
  Round now{.number = 1};
  VARVE_RETURN_IF_ERROR(tensors.Overwrite(now, stream.get()));
  tensors.Expect(now);
  for (int i = 1; i <= rounds; ++i) {
    const auto step = static_cast<uint64_t>(i);
    const Round next = {.number = step + 1, .share = kShares[step % std::size(kShares)]};
    VARVE_RETURN_IF_ERROR(SaveAndOverwrite(step, tensors, next, checkpointer.get(), *source,
                                           stream.get(), other.get()));
    VARVE_RETURN_IF_ERROR(checkpointer->Wait());
    VARVE_RETURN_IF_ERROR(tensors.Compare(checkpointer->store(), step));
    tensors.Expect(next);
  }
  VARVE_RETURN_IF_ERROR(checkpointer->Close());
  std::printf("%d saves, %s: each is what the tensors held\n", rounds, setting.what);
  return Status::Ok();
}

// Overwrites a word of each block again and again until it is stopped: fast enough to come between
// any look at a chunk and the next.
class Intruder {
 public:
  Intruder(const Tensors* tensors, cudaStream_t stream)
      : thread_([this, tensors, stream](const std::stop_token& stop) {
          for (Round round{.number = 1'000, .words = 1}; !stop.stop_requested() && status_.ok();
               ++round.number) {
            status_ = tensors->Overwrite(round, stream);
            if (status_.ok()) status_ = ToStatus(cudaStreamSynchronize(stream), "an intruder");
          }
        }) {}
  Status Stop() {
    thread_.request_stop();
    thread_.join();
    return status_;
  }

 private:
  Status status_;  // of the thread, until it has ended
  std::jthread thread_;
};

// Goes on until this many saves have failed.
Status BreakContract(const std::string& path, const Setting& setting, int failures) {
  VARVE_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
  VARVE_ASSIGN_OR_RETURN(const Stream other, MakeStream());
  Tensors tensors;
  VARVE_RETURN_IF_ERROR(tensors.Init());
  VARVE_ASSIGN_OR_RETURN(
      auto source, CudaTensorSource::Create(
                       {.streams = {{0, stream.get()}}, .staging_bytes = setting.device_bytes}));
  VARVE_ASSIGN_OR_RETURN(auto checkpointer, Open(path, setting, source, /*saves_will_fail=*/true));
  const Round first{.number = 1};
  VARVE_RETURN_IF_ERROR(tensors.Overwrite(first, stream.get()));
  tensors.Expect(first);
  VARVE_RETURN_IF_ERROR(checkpointer->Save(1, tensors.state()).status());
  VARVE_RETURN_IF_ERROR(checkpointer->Wait());
  int found = 0;
  uint64_t step = 1;
  while (found < failures) {
    ++step;
    Intruder intruder(&tensors, other.get());
    VARVE_RETURN_IF_ERROR(checkpointer->BeginSave(step, tensors.state()).status());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    VARVE_RETURN_IF_ERROR(checkpointer->Wait());
    VARVE_RETURN_IF_ERROR(intruder.Stop());
    const Status saved = checkpointer->last_stats()->status;
    const bool is_found = saved.message().find("changed while it was staged") != std::string::npos;
    if (is_found) ++found;
    // The intruder may have come too late on a busy machine, but not again and again.
    const bool is_hopeless = step > 10 * static_cast<uint64_t>(failures);
    if (is_found || (saved.ok() && !is_hopeless)) continue;
    return Status::Corruption("step " + std::to_string(step) +
                              " was overwritten while it was staged; expected an error that says "
                              "so, found: " +
                              saved.ToString());
  }
  VARVE_RETURN_IF_ERROR(tensors.Compare(checkpointer->store(), 1));
  checkpointer->Close().IgnoreError();  // says again what the saves said
  std::printf(
      "%d of %d saves of tensors that change meanwhile, %s: failed and said so; the step "
      "before is whole\n",
      failures, static_cast<int>(step - 1), setting.what);
  return Status::Ok();
}

}  // namespace

Status CheckContract(const std::string& folder, int rounds) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  constexpr Setting kSettings[] = {
      {"staging on the device for everything", 64 * kMiB, 0},
      {"no staging on the device", 0, 0},
      {"little staging on the device", 2 * kMiB, 0},
      {"less staging on the host than what changes", 64 * kMiB, 4 * kMiB},
  };
  std::filesystem::create_directories(folder);
  const int each = (rounds + 3) / 4;
  int store = 0;
  const auto next_path = [&] { return folder + "/" + std::to_string(store++); };
  for (const Setting& setting : kSettings) {
    VARVE_RETURN_IF_ERROR(KeepContract(next_path(), setting, each));
  }
  for (const Setting& setting : kSettings) {
    VARVE_RETURN_IF_ERROR(BreakContract(next_path(), setting, 5));
  }
  std::printf(
      "cuda_loop: the contract holds: %d saves are what the tensors held, %d broken ones "
      "are found out: met\n",
      4 * each, 4 * 5);
  return Status::Ok();
}

}  // namespace cuda_example
