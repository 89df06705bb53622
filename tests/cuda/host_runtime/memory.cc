// SPDX-License-Identifier: Apache-2.0
//
// Memory of devices and of the host, and copies between them.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "tests/cuda/host_runtime/machine.h"

namespace varve::internal::testing::runtime {
namespace {

constexpr std::align_val_t kAlignment{256};  // CUDA's
constexpr int kJunk = 0xa5;

bool IsOnDevice(cudaMemoryType type) {
  return type == cudaMemoryTypeDevice || type == cudaMemoryTypeManaged;
}
bool IsOnHost(cudaMemoryType type) { return type != cudaMemoryTypeDevice; }

bool Fits(cudaMemcpyKind kind, cudaMemoryType from, cudaMemoryType to) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return IsOnHost(from) && IsOnHost(to);
    case cudaMemcpyHostToDevice:
      return IsOnHost(from) && IsOnDevice(to);
    case cudaMemcpyDeviceToHost:
      return IsOnDevice(from) && IsOnHost(to);
    case cudaMemcpyDeviceToDevice:
      return IsOnDevice(from) && IsOnDevice(to);
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t size = 0;
  cudaMemoryType to_type{}, from_type{};
};

cudaError_t MakeCopy(const Machine& machine, void* to, const void* from, size_t size,
                     cudaMemcpyKind kind, Copy* copy) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
    return cudaErrorInvalidMemcpyDirection;
  }
  if (size == 0) return cudaSuccess;
  Range source, target;
  const bool is_whole =
      machine.FindRange(from, size, &source) && machine.FindRange(to, size, &target);
  if (!is_whole || !Fits(kind, source.type, target.type)) return cudaErrorInvalidValue;
  *copy = {to, from, size, target.type, source.type};
  return cudaSuccess;
}

WorkPointer EnqueueCopy(Machine* machine, const Copy& copy, Stream* stream) {
  if (copy.from_type != cudaMemoryTypeUnregistered) {
    return machine->Enqueue(stream, [copy] { std::memcpy(copy.to, copy.from, copy.size); });
  }
  auto staged = std::make_shared<std::vector<std::byte>>(copy.size);
  {
    const Seen seen;
    std::memcpy(staged->data(), copy.from, copy.size);
  }
  return machine->Enqueue(stream,
                          [copy, staged] { std::memcpy(copy.to, staged->data(), copy.size); });
}

bool IsPageable(const Copy& copy) {
  return copy.to_type == cudaMemoryTypeUnregistered || copy.from_type == cudaMemoryTypeUnregistered;
}

// Waits as rarely as CUDA may.
bool MustWait(const Copy& copy, bool is_async) {
  if (!IsOnDevice(copy.from_type) && !IsOnDevice(copy.to_type)) return true;
  if (copy.to_type == cudaMemoryTypeUnregistered) return true;
  const bool is_pinned = copy.to_type == cudaMemoryTypeHost || copy.from_type == cudaMemoryTypeHost;
  return is_pinned && !is_async;
}

cudaError_t RunCopy(Machine* machine, const Copy& copy, bool is_async, cudaStream_t handle,
                    Lock* lock) {
  StreamPointer stream;
  cudaError_t error = machine->FindStreamForWork(handle, &stream);
  if (error == cudaSuccess && IsPageable(copy)) error = machine->DoUnsafe();
  if (error != cudaSuccess || copy.size == 0) return error;
  machine->CountCopy(copy.from_type, copy.to_type, copy.size);
  const WorkPointer done = EnqueueCopy(machine, copy, stream.get());
  if (!MustWait(copy, is_async)) return cudaSuccess;
  machine->Await(done, lock);
  return machine->LostDevice(stream->device);
}

// Rows of memory of devices.
cudaError_t RunRows(Machine* machine, std::byte* to, size_t to_step, const std::byte* from,
                    size_t from_step, size_t width, size_t height, cudaStream_t handle) {
  constexpr size_t kMaxStep = INT32_MAX;
  if (width > to_step || width > from_step || to_step > kMaxStep || from_step > kMaxStep) {
    return cudaErrorInvalidValue;
  }
  StreamPointer stream;
  const cudaError_t error = machine->FindStreamForWork(handle, &stream);
  if (error != cudaSuccess || width == 0 || height == 0) return error;
  Range source, target;
  const bool is_whole = machine->FindRange(from, (height - 1) * from_step + width, &source) &&
                        machine->FindRange(to, (height - 1) * to_step + width, &target);
  if (!is_whole || !IsOnDevice(source.type) || !IsOnDevice(target.type)) {
    return cudaErrorInvalidValue;
  }
  machine->CountCopy(source.type, target.type, width * height);
  machine->Enqueue(stream.get(), [=] {
    for (size_t i = 0; i < height; ++i) std::memcpy(to + i * to_step, from + i * from_step, width);
  });
  return cudaSuccess;
}

cudaError_t RunMemset(Machine* machine, void* memory, int value, size_t size, bool is_async,
                      cudaStream_t handle, Lock* lock) {
  StreamPointer stream;
  const cudaError_t error = machine->FindStreamForWork(handle, &stream);
  if (error != cudaSuccess) return error;
  if (stream->device != current_device) return cudaErrorInvalidResourceHandle;
  if (size == 0) return cudaSuccess;
  Range range;
  const bool is_whole = machine->FindRange(memory, size, &range);
  if (!is_whole || range.type == cudaMemoryTypeUnregistered) return cudaErrorInvalidValue;
  if (range.type == cudaMemoryTypeDevice && range.device != stream->device) {
    return cudaErrorInvalidValue;
  }
  const WorkPointer done =
      machine->Enqueue(stream.get(), [=] { std::memset(memory, value, size); });
  if (is_async || range.type != cudaMemoryTypeHost) return cudaSuccess;
  machine->Await(done, lock);
  return machine->LostDevice(stream->device);
}

}  // namespace

void Machine::CountCopy(cudaMemoryType from, cudaMemoryType to, size_t size) {
  if (IsOnDevice(from) == IsOnDevice(to)) {
    copied_bytes[IsOnDevice(from) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToHost] += size;
  } else {
    copied_bytes[IsOnDevice(from) ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice] += size;
  }
}

bool Machine::FindRange(const void* memory, size_t size, Range* range) const {
  const auto* const begin = static_cast<const std::byte*>(memory);
  auto next = ranges.upper_bound(begin);
  if (next != ranges.begin()) {
    const Range& found = std::prev(next)->second;
    const std::byte* const end = found.begin + found.size;
    if (begin < end) {
      *range = found;
      return size <= static_cast<size_t>(end - begin);
    }
  }
  *range = {};
  return next == ranges.end() || begin + size <= next->second.begin;
}

cudaError_t Machine::Allocate(std::string_view function, cudaMemoryType type, size_t size,
                              void** memory) {
  *memory = nullptr;
  if (size == 0) return cudaSuccess;
  uint64_t& used = devices[static_cast<size_t>(current_device)].used_bytes;
  if (type == cudaMemoryTypeDevice) {
    if (size > device_bytes - used) return cudaErrorMemoryAllocation;
    used += size;
  }
  std::byte* const begin = Place(type, size);
  std::memset(begin, kJunk, size);
  *memory = begin;
  ranges[begin] = {begin, size, type, current_device, function};
  return cudaSuccess;
}

cudaError_t Machine::Free(std::string_view function, void* memory) {
  const auto found = ranges.find(static_cast<const std::byte*>(memory));
  if (found == ranges.end() || found->second.made_by != function) return cudaErrorInvalidValue;
  const Range range = found->second;
  ranges.erase(found);
  if (range.type == cudaMemoryTypeDevice) {
    devices[static_cast<size_t>(range.device)].used_bytes -= range.size;
  }
  Unplace(range.begin);
  return LostDevice(range.device);
}

void Machine::FreeAll() {
  for (const auto& [begin, range] : ranges) {
    if (range.made_by != "cudaHostRegister") Unplace(range.begin);
  }
  ranges.clear();
  operator delete(arena.begin, kAlignment);
  arena = {};
}

void Machine::MakeArena(size_t size) {
  arena = {static_cast<std::byte*>(operator new(size, kAlignment)), size};
}

std::byte* Machine::Place(cudaMemoryType type, size_t size) {
  constexpr auto kUnit = static_cast<size_t>(kAlignment);
  const size_t end = arena.used + (size + kUnit - 1) / kUnit * kUnit;
  if (type != cudaMemoryTypeDevice || end > arena.size) {
    return static_cast<std::byte*>(operator new(size, kAlignment));
  }
  return arena.begin + std::exchange(arena.used, end);
}

void Machine::Unplace(std::byte* memory) {
  const bool is_in_arena = memory >= arena.begin && memory < arena.begin + arena.size;
  if (!is_in_arena) operator delete(memory, kAlignment);
}

}  // namespace varve::internal::testing::runtime

using namespace varve::internal::testing::runtime;

cudaError_t cudaMalloc(void** memory, size_t size) {
  return CallOnDevice("cudaMalloc", [&](Machine& machine, Lock&) {
    return machine.Allocate("cudaMalloc", cudaMemoryTypeDevice, size, memory);
  });
}

cudaError_t cudaMallocManaged(void** memory, size_t size, unsigned /*flags*/) {
  return CallOnDevice("cudaMallocManaged", [&](Machine& machine, Lock&) {
    return machine.Allocate("cudaMallocManaged", cudaMemoryTypeManaged, size, memory);
  });
}

// As CUDA's, it waits for all work of the device. Nobody should rely on that, so TSan is not told.
cudaError_t cudaFree(void* memory) {
  return Call("cudaFree", [&](Machine& machine, Lock& lock) {
    if (memory == nullptr) return cudaSuccess;
    Range range;
    machine.FindRange(memory, 1, &range);
    if (range.type == cudaMemoryTypeUnregistered) return cudaErrorInvalidValue;
    machine.AwaitDevice(range.device, &lock);
    const bool is_managed = range.type == cudaMemoryTypeManaged;
    return machine.Free(is_managed ? "cudaMallocManaged" : "cudaMalloc", memory);
  });
}

cudaError_t cudaHostAlloc(void** memory, size_t size, unsigned /*flags*/) {
  return CallOnDevice("cudaHostAlloc", [&](Machine& machine, Lock&) {
    return machine.Allocate("cudaHostAlloc", cudaMemoryTypeHost, size, memory);
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return Call("cudaFreeHost", [&](Machine& machine, Lock&) {
    return memory == nullptr ? cudaSuccess : machine.Free("cudaHostAlloc", memory);
  });
}

cudaError_t cudaHostRegister(void* memory, size_t size, unsigned /*flags*/) {
  return CallOnDevice("cudaHostRegister", [&](Machine& machine, Lock&) {
    if (memory == nullptr || size == 0) return cudaErrorInvalidValue;
    Range range;
    const bool is_whole = machine.FindRange(memory, size, &range);
    if (!is_whole || range.type != cudaMemoryTypeUnregistered) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
    auto* const begin = static_cast<std::byte*>(memory);
    machine.ranges[begin] = {begin, size, cudaMemoryTypeHost, current_device, "cudaHostRegister"};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* memory) {
  return Call("cudaHostUnregister", [&](Machine& machine, Lock&) {
    const auto found = machine.ranges.find(static_cast<const std::byte*>(memory));
    const bool is_registered =
        found != machine.ranges.end() && found->second.made_by == "cudaHostRegister";
    if (!is_registered) return cudaErrorHostMemoryNotRegistered;
    const int device = found->second.device;
    machine.ranges.erase(found);
    return machine.LostDevice(device);
  });
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  return CallOnDevice("cudaMemGetInfo", [&](Machine& machine, Lock&) {
    const uint64_t used = machine.devices[static_cast<size_t>(current_device)].used_bytes;
    *total = machine.device_bytes;
    *available = machine.device_bytes - used;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  return CallOnDevice("cudaPointerGetAttributes", [&](Machine& machine, Lock&) {
    Range range;
    machine.FindRange(memory, 1, &range);
    void* const address = const_cast<void*>(memory);
    const bool is_known = range.type != cudaMemoryTypeUnregistered;
    *attributes = {};
    attributes->type = range.type;
    attributes->device = is_known ? range.device : cudaInvalidDeviceId;
    attributes->devicePointer = is_known ? address : nullptr;
    attributes->hostPointer = IsOnHost(range.type) ? address : nullptr;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return CallOnDevice("cudaMemcpy", [&](Machine& machine, Lock& lock) {
    Copy copy;
    const cudaError_t error = MakeCopy(machine, to, from, size, kind, &copy);
    return error == cudaSuccess ? RunCopy(&machine, copy, false, nullptr, &lock) : error;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call("cudaMemcpyAsync", [&](Machine& machine, Lock& lock) {
    Copy copy;
    const cudaError_t error = MakeCopy(machine, to, from, size, kind, &copy);
    return error == cudaSuccess ? RunCopy(&machine, copy, true, stream, &lock) : error;
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_step, const void* from, size_t from_step,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return Call("cudaMemcpy2DAsync", [&](Machine& machine, Lock&) {
    if (kind != cudaMemcpyDeviceToDevice) return cudaErrorInvalidMemcpyDirection;
    return RunRows(&machine, static_cast<std::byte*>(to), to_step,
                   static_cast<const std::byte*>(from), from_step, width, height, stream);
  });
}

cudaError_t cudaMemset(void* memory, int value, size_t size) {
  return CallOnDevice("cudaMemset", [&](Machine& machine, Lock& lock) {
    return RunMemset(&machine, memory, value, size, false, nullptr, &lock);
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t size, cudaStream_t stream) {
  return Call("cudaMemsetAsync", [&](Machine& machine, Lock& lock) {
    return RunMemset(&machine, memory, value, size, true, stream, &lock);
  });
}
