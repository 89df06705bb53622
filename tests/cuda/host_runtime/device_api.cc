// SPDX-License-Identifier: Apache-2.0
//
// Errors and devices.
#include <algorithm>

#include "tests/cuda/host_runtime/machine.h"

using namespace varve::internal::testing::runtime;

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;  // CUDA's
};

constexpr ErrorText kErrorTexts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

constexpr ErrorText kUnknown = {cudaSuccess, "unrecognized error code", "unrecognized error code"};

const ErrorText& TextOf(cudaError_t error) {
  for (const ErrorText& text : kErrorTexts) {
    if (text.error == error) return text;
  }
  return kUnknown;
}

constexpr int kGreatestPriority = -5;  // H100's

// These make no context of the current device.
constexpr std::string_view kLooks[] = {"cudaDeviceGetAttribute", "cudaGetDevice",
                                       "cudaGetDeviceCount", "cudaSetDevice"};

}  // namespace

void Machine::MakeContext(std::string_view function) {
  if (is_stream || !HasDevice(current_device) || std::ranges::count(kLooks, function) > 0) return;
  devices[static_cast<size_t>(current_device)].has_context = true;
}

const char* cudaGetErrorName(cudaError_t error) { return TextOf(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return TextOf(error).text; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetDeviceCount(int* count) {
  return Call("cudaGetDeviceCount", [&](Machine& machine, Lock&) {
    *count = static_cast<int>(machine.devices.size());
    return machine.devices.empty() ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Call("cudaGetDevice", [&](Machine& machine, Lock&) {
    *device = current_device;
    return machine.devices.empty() ? cudaErrorNoDevice : cudaSuccess;
  });
}

// This works also for a lost device. Calls on it fail then.
cudaError_t cudaSetDevice(int device) {
  return Call("cudaSetDevice", [&](Machine& machine, Lock&) {
    if (machine.devices.empty()) return cudaErrorNoDevice;
    if (!machine.HasDevice(device)) return cudaErrorInvalidDevice;
    current_device = device;
    machine.devices[static_cast<size_t>(device)].has_context = true;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return Call("cudaDeviceGetAttribute", [&](Machine& machine, Lock&) {
    if (!machine.HasDevice(device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount:
        *value = varve::internal::testing::kProcessors;
        break;
      case cudaDevAttrComputeCapabilityMajor:
        *value = machine.compute_capability;
        break;
      default:
        return cudaErrorInvalidValue;
    }
    return machine.LostDevice(device);
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return CallOnDevice("cudaDeviceGetStreamPriorityRange", [&](Machine&, Lock&) {
    *least = 0;
    *greatest = kGreatestPriority;
    return cudaSuccess;
  });
}
