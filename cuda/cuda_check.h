// SPDX-License-Identifier: Apache-2.0
//
// Errors of CUDA as Status. Every call of its runtime is wrapped in VARVE_CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "varve/status.h"

namespace varve::internal::gpu {

// Returns ok, or the error of `call`. Missing memory and a lost device are kUnavailable.
inline Status ToStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return Status::Ok();
  cudaGetLastError();  // else a later call that succeeds would report it again
  return Status::Unavailable(std::string("CUDA: ") + call + ": " + cudaGetErrorString(error) +
                             " (" + cudaGetErrorName(error) + ")");
}

}  // namespace varve::internal::gpu

// Returns from a function that returns Status or Result when the call fails.
#define VARVE_CUDA(call) VARVE_RETURN_IF_ERROR(::varve::internal::gpu::ToStatus(call, #call))
