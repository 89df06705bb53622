// SPDX-License-Identifier: Apache-2.0
//
// Streams as threads. A stream's work runs one after the other and is Seen. Everything around it is
// Unseen.
#include <thread>
#include <utility>

#include "tests/cuda/host_runtime/machine.h"

namespace varve::internal::testing::runtime {

cudaError_t Machine::FindStream(cudaStream_t handle, StreamPointer* stream) {
  if (handle != nullptr) {
    const auto found = streams.find(handle);
    if (found == streams.end()) return cudaErrorInvalidResourceHandle;
    *stream = found->second;
    return cudaSuccess;
  }
  if (!HasDevice(current_device)) return cudaErrorInvalidDevice;
  StreamPointer& null_stream = devices[static_cast<size_t>(current_device)].null_stream;
  if (null_stream == nullptr) null_stream = StartStream(current_device);
  *stream = null_stream;
  return cudaSuccess;
}

cudaError_t Machine::FindStreamForWork(cudaStream_t handle, StreamPointer* stream) {
  const cudaError_t error = FindStream(handle, stream);
  if (error != cudaSuccess) return error;
  if (const cudaError_t lost = LostDevice((*stream)->device); lost != cudaSuccess) return lost;
  if ((*stream)->capture == cudaStreamCaptureStatusNone) return cudaSuccess;
  (*stream)->capture = cudaStreamCaptureStatusInvalidated;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t Machine::FindEvent(cudaEvent_t handle, Event** event) {
  const auto found = events.find(handle);
  if (found == events.end()) return cudaErrorInvalidResourceHandle;
  *event = &found->second;
  return cudaSuccess;
}

StreamPointer Machine::StartStream(int device) {
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  std::seed_seq seeds{seed, static_cast<uint64_t>(running.size())};
  stream->random.seed(seeds);
  running.push_back(stream);
  std::thread([this, stream] {
    const Unseen unseen;
    Run(stream);
  }).detach();
  return stream;
}

WorkPointer Machine::Enqueue(Stream* stream, std::function<void()> run) {
  auto work = std::make_shared<Work>();
  work->run = std::move(run);
  Publish(&work->enqueued_edge);
  stream->queue.push_back(work);
  stream->last = work;
  changed.notify_all();
  return work;
}

void Machine::Await(const WorkPointer& work, Lock* lock) {
  if (work == nullptr) return;
  changed.wait(*lock, [&] { return work->is_done; });
  Observe(&work->done_edge);
}

void Machine::AwaitDevice(int device, Lock* lock) {
  std::vector<WorkPointer> waited;
  for (const StreamPointer& stream : running) {
    if (stream->device == device && stream->last != nullptr) waited.push_back(stream->last);
  }
  for (const WorkPointer& work : waited) {
    changed.wait(*lock, [&] { return work->is_done; });
  }
}

void Machine::StopStreams(Lock* lock) {
  for (const StreamPointer& stream : running) stream->is_closed = true;
  changed.notify_all();
  changed.wait(*lock, [this] { return running.empty(); });
}

void Machine::Run(const StreamPointer& stream) {
  is_stream = true;
  current_device = stream->device;
  Lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return !stream->queue.empty() || stream->is_closed; });
    if (stream->queue.empty()) break;
    RunOne(stream.get(), &lock);
  }
  std::erase(running, stream);
  changed.notify_all();
}

void Machine::RunOne(Stream* stream, Lock* lock) {
  changed.wait(*lock, [&] { return !devices[static_cast<size_t>(stream->device)].is_held; });
  const WorkPointer work = stream->queue.front();
  const std::chrono::microseconds delay = Delay(stream);
  lock->unlock();
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
  lock->lock();
  const bool is_lost = LostDevice(stream->device) != cudaSuccess;
  lock->unlock();
  Observe(&work->enqueued_edge);
  {
    const Seen seen;
    if (!is_lost) work->run();
    work->run = nullptr;
  }
  Publish(&work->done_edge);
  lock->lock();
  stream->queue.pop_front();
  work->is_done = true;
  work->when = std::chrono::steady_clock::now();
  changed.notify_all();
}

std::chrono::microseconds Machine::Delay(Stream* stream) const {
  return std::chrono::microseconds(
      std::uniform_int_distribution<int64_t>(0, max_delay.count())(stream->random));
}

}  // namespace varve::internal::testing::runtime
