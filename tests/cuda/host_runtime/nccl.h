// SPDX-License-Identifier: Apache-2.0
//
// Stands in for NCCL's header of this name, as cuda_runtime_api.h does for CUDA's. It has what
// cuda/ uses. nccl.cc says what the functions do.
#pragma once

#include <cuda_runtime_api.h>

#include <climits>
#include <cstddef>

using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclInProgress = 7,
};
enum ncclDataType_t { ncclUint8 = 1 };

struct ncclConfig_t {
  size_t size;
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { sizeof(ncclConfig_t), INT_MIN }

extern "C" {

const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* into, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* from, void* into, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream);

}  // extern "C"
