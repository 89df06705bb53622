// SPDX-License-Identifier: Apache-2.0
//
// Streams and events.
#include <chrono>

#include "tests/cuda/host_runtime/machine.h"

using namespace varve::internal::testing::runtime;

namespace {

// A capture ends by whatever waits for its stream.
cudaError_t CheckNotCapturing(Stream* stream) {
  if (stream->capture == cudaStreamCaptureStatusNone) return cudaSuccess;
  stream->capture = cudaStreamCaptureStatusInvalidated;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t MakeStream(const char* function, cudaStream_t* handle, unsigned flags) {
  return CallOnDevice(function, [&](Machine& machine, Lock&) {
    if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *handle = machine.NewHandle<cudaStream_t>();
    machine.streams[*handle] = machine.StartStream(current_device);
    return cudaSuccess;
  });
}

cudaError_t MakeEvent(const char* function, cudaEvent_t* handle, bool is_timed) {
  return CallOnDevice(function, [&](Machine& machine, Lock&) {
    *handle = machine.NewHandle<cudaEvent_t>();
    machine.events[*handle] = {.device = current_device, .is_timed = is_timed};
    return cudaSuccess;
  });
}

bool IsDone(const WorkPointer& work) {
  if (work == nullptr) return true;
  if (work->is_done) Observe(&work->done_edge);
  return work->is_done;
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return MakeStream("cudaStreamCreateWithFlags", stream, flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return MakeStream("cudaStreamCreateWithPriority", stream, flags);
}

// The enqueued work is still done. Nobody waits for it.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return Call("cudaStreamDestroy", [&](Machine& machine, Lock&) {
    const auto found = machine.streams.find(handle);
    if (found == machine.streams.end()) return cudaErrorInvalidResourceHandle;
    const StreamPointer stream = found->second;
    machine.streams.erase(found);
    stream->is_closed = true;
    machine.changed.notify_all();
    return machine.LostDevice(stream->device);
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return Call("cudaStreamSynchronize", [&](Machine& machine, Lock& lock) {
    StreamPointer stream;
    cudaError_t error = machine.FindStream(handle, &stream);
    if (error == cudaSuccess) error = CheckNotCapturing(stream.get());
    if (error != cudaSuccess) return error;
    machine.Await(WorkPointer(stream->last), &lock);
    return machine.LostDevice(stream->device);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return Call("cudaStreamQuery", [&](Machine& machine, Lock&) {
    StreamPointer stream;
    const cudaError_t error = machine.FindStreamForWork(handle, &stream);
    if (error != cudaSuccess) return error;
    return IsDone(stream->last) ? cudaSuccess : cudaErrorNotReady;
  });
}

// Waits for the event as it is recorded now. It does not wait for an event that was never recorded.
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned /*flags*/) {
  return Call("cudaStreamWaitEvent", [&](Machine& machine, Lock&) {
    StreamPointer stream;
    Event* event = nullptr;
    cudaError_t error = machine.FindEvent(event_handle, &event);
    if (error == cudaSuccess) error = machine.FindStreamForWork(handle, &stream);
    if (error != cudaSuccess || event->recorded == nullptr) return error;
    machine.Enqueue(stream.get(), [&machine, awaited = event->recorded] {
      const Unseen unseen;
      Lock lock(machine.mutex);
      machine.Await(awaited, &lock);
    });
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return Call("cudaLaunchHostFunc", [&](Machine& machine, Lock&) {
    StreamPointer stream;
    const cudaError_t error = machine.FindStreamForWork(handle, &stream);
    if (error != cudaSuccess) return error;
    machine.Enqueue(stream.get(), [function, data] { function(data); });
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return MakeEvent("cudaEventCreate", event, true);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return MakeEvent("cudaEventCreateWithFlags", event, (flags & cudaEventDisableTiming) == 0);
}

cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t handle) {
  return Call("cudaEventRecord", [&](Machine& machine, Lock&) {
    StreamPointer stream;
    Event* event = nullptr;
    cudaError_t error = machine.FindEvent(event_handle, &event);
    if (error == cudaSuccess) error = machine.FindStreamForWork(handle, &stream);
    if (error != cudaSuccess) return error;
    if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
    event->recorded = machine.Enqueue(stream.get(), [] {});
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return Call("cudaEventSynchronize", [&](Machine& machine, Lock& lock) {
    Event* event = nullptr;
    const cudaError_t error = machine.FindEvent(handle, &event);
    if (error != cudaSuccess) return error;
    const int device = event->device;
    machine.Await(WorkPointer(event->recorded), &lock);
    return machine.LostDevice(device);
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return Call("cudaEventQuery", [&](Machine& machine, Lock&) {
    Event* event = nullptr;
    const cudaError_t error = machine.FindEvent(handle, &event);
    if (error != cudaSuccess) return error;
    if (const cudaError_t lost = machine.LostDevice(event->device); lost != cudaSuccess)
      return lost;
    return IsDone(event->recorded) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle,
                                 cudaEvent_t end_handle) {
  return Call("cudaEventElapsedTime", [&](Machine& machine, Lock&) {
    Event *start = nullptr, *end = nullptr;
    cudaError_t error = machine.FindEvent(start_handle, &start);
    if (error == cudaSuccess) error = machine.FindEvent(end_handle, &end);
    if (error != cudaSuccess) return error;
    const bool are_timed = start->is_timed && end->is_timed && start->device == end->device;
    if (!are_timed || start->recorded == nullptr || end->recorded == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!start->recorded->is_done || !end->recorded->is_done) return cudaErrorNotReady;
    const std::chrono::duration<float, std::milli> elapsed =
        end->recorded->when - start->recorded->when;
    *milliseconds = elapsed.count();
    return machine.LostDevice(start->device);
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return Call("cudaEventDestroy", [&](Machine& machine, Lock&) {
    const auto found = machine.events.find(handle);
    if (found == machine.events.end()) return cudaErrorInvalidResourceHandle;
    const int device = found->second.device;
    machine.events.erase(found);
    return machine.LostDevice(device);
  });
}
