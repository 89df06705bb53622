// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/host_runtime/host_runtime.h"

#include <algorithm>
#include <utility>

#include "tests/cuda/host_runtime/machine.h"

namespace varve::internal::testing {
namespace runtime {

// Never destroyed: streams may outlive main.
Machine& Machine::Get() {
  static Machine& machine = *new Machine;
  return machine;
}

cudaError_t CountCall(Machine* machine, std::string_view function) {
  ++machine->calls[std::string(function)];
  if (is_stream) return cudaErrorNotPermitted;
  cudaError_t due = cudaSuccess;
  const auto [begin, end] = machine->faults.equal_range(function);
  for (auto fault = begin; fault != end;) {
    const bool is_elsewhere =
        fault->second.device != kAnyDevice && fault->second.device != current_device;
    if (is_elsewhere || fault->second.after-- > 0 || due != cudaSuccess) {
      ++fault;
      continue;
    }
    due = fault->second.error;
    fault = machine->faults.erase(fault);
  }
  return due;
}

void LoseDevice(Machine* machine, int device, cudaError_t error) {
  cudaError_t& lost = machine->devices[static_cast<size_t>(device)].lost;
  if (lost == cudaSuccess) lost = error;
}

namespace {

// Runs `change` with the machine to itself.
template <typename Change>
auto WithMachine(const Change& change) {
  const Unseen unseen;
  Machine& machine = Machine::Get();
  Lock lock(machine.mutex);
  return change(machine, lock);
}

std::string Describe(const Range& range) {
  return std::string(range.made_by) + ": " + std::to_string(range.size) + " bytes of device " +
         std::to_string(range.device);
}

}  // namespace
}  // namespace runtime

using namespace runtime;

void Reset() {
  WithMachine([](Machine& machine, Lock& lock) {
    for (Device& device : machine.devices) {
      device.lost = cudaErrorDevicesUnavailable;
      device.is_held = false;
    }
    machine.StopStreams(&lock);
    machine.FreeAll();
    machine.devices.assign(2, {});
    machine.streams.clear();
    machine.events.clear();
    machine.graphs.clear();
    machine.calls.clear();
    machine.copied_bytes.clear();
    machine.faults.clear();
    machine.device_bytes = Machine::kDeviceBytes;
    machine.compute_capability = Machine::kComputeCapability;
    machine.max_delay = Machine::kMaxDelay;
    machine.seed = 1;
    machine.kernels = Kernels::kEmulated;
  });
  current_device = 0;
  last_error = cudaSuccess;
  capture_mode = cudaStreamCaptureModeGlobal;
}

void SetDevices(int count) {
  WithMachine([&](Machine& machine, Lock&) { machine.devices.resize(static_cast<size_t>(count)); });
}

void SetDeviceMemory(uint64_t bytes) {
  WithMachine([&](Machine& machine, Lock&) { machine.device_bytes = bytes; });
}

void SetComputeCapability(int major) {
  WithMachine([&](Machine& machine, Lock&) { machine.compute_capability = major; });
}

void SetDelay(std::chrono::microseconds max, uint64_t seed) {
  WithMachine([&](Machine& machine, Lock&) {
    machine.max_delay = max;
    machine.seed = seed;
  });
}

void PlaceSideBySide(uint64_t bytes) {
  WithMachine([&](Machine& machine, Lock&) { machine.MakeArena(bytes); });
}

void FailCall(std::string_view function, cudaError_t error, int after, int device) {
  WithMachine([&](Machine& machine, Lock&) {
    if (error == cudaSuccess) {
      machine.faults.erase(std::string(function));
    } else {
      machine.faults.emplace(std::string(function), Fault{error, after, device});
    }
  });
}

int NumCalls(std::string_view function) {
  return WithMachine([&](Machine& machine, Lock&) {
    const auto found = machine.calls.find(function);
    return found == machine.calls.end() ? 0 : found->second;
  });
}

uint64_t CopiedBytes(cudaMemcpyKind kind) {
  return WithMachine([&](Machine& machine, Lock&) { return machine.copied_bytes[kind]; });
}

void AwaitIdle() {
  WithMachine([](Machine& machine, Lock& lock) {
    const auto is_idle = [](const StreamPointer& stream) { return stream->queue.empty(); };
    machine.changed.wait(lock, [&] { return std::ranges::all_of(machine.running, is_idle); });
  });
}

void HoldDevice(int device, bool is_held) {
  WithMachine([&](Machine& machine, Lock&) {
    machine.devices[static_cast<size_t>(device)].is_held = is_held;
    machine.changed.notify_all();
  });
}

void LoseDevice(int device, cudaError_t error) {
  WithMachine([&](Machine& machine, Lock&) { runtime::LoseDevice(&machine, device, error); });
}

std::vector<int> Contexts() {
  return WithMachine([](Machine& machine, Lock&) {
    std::vector<int> contexts;
    for (size_t i = 0; i < machine.devices.size(); ++i) {
      if (machine.devices[i].has_context) contexts.push_back(static_cast<int>(i));
    }
    return contexts;
  });
}

std::vector<std::string> Leaks() {
  return WithMachine([](Machine& machine, Lock&) {
    std::vector<std::string> leaks;
    const auto add = [&](const char* what, int device) {
      leaks.push_back(std::string(what) + " of device " + std::to_string(device));
    };
    for (const auto& [begin, range] : machine.ranges) leaks.push_back(Describe(range));
    for (const auto& [handle, stream] : machine.streams) add("a stream", stream->device);
    for (const auto& [handle, event] : machine.events) add("an event", event.device);
    for (const auto& [handle, device] : machine.graphs) add("a graph", device);
    return leaks;
  });
}

cudaError_t Enqueue(cudaStream_t handle, std::function<void()> work) {
  return Call("Enqueue", [&](Machine& machine, Lock&) {
    StreamPointer stream;
    const cudaError_t error = machine.FindStreamForWork(handle, &stream);
    if (error == cudaSuccess) machine.Enqueue(stream.get(), std::move(work));
    return error;
  });
}

cudaError_t Launch(std::string_view name, cudaStream_t handle, std::function<void()> work) {
  return CallOnDevice(name, [&](Machine& machine, Lock&) {
    StreamPointer stream;
    const cudaError_t error = machine.FindStreamForWork(handle, &stream);
    if (error != cudaSuccess) return error;
    if (stream->device != current_device) return cudaErrorInvalidResourceHandle;
    machine.Enqueue(stream.get(), std::move(work));
    return cudaSuccess;
  });
}

bool MayTouch(const void* memory, size_t size) {
  return WithMachine([&](Machine& machine, Lock&) {
    Range range;
    const bool is_whole = machine.FindRange(memory, size, &range);
    const bool is_elsewhere = range.type == cudaMemoryTypeDevice && range.device != current_device;
    if (is_whole && !is_elsewhere && range.type != cudaMemoryTypeUnregistered) return true;
    runtime::LoseDevice(&machine, current_device, cudaErrorIllegalAddress);
    return false;
  });
}

void UseKernels(Kernels kernels) {
  WithMachine([&](Machine& machine, Lock&) { machine.kernels = kernels; });
}

Kernels UsedKernels() {
  return WithMachine([](Machine& machine, Lock&) { return machine.kernels; });
}

}  // namespace varve::internal::testing
