// SPDX-License-Identifier: Apache-2.0
//
// NCCL between threads of one process, each with a device of the host's runtime. It has only what
// cuda/ uses: communicators that do not block, and bytes. Where NCCL leaves something open, this
// does what is hardest on the code under test:
//
//   - Nothing is launched before the caller has asked twice for the state.
//   - A rank sends until the other has received, and waits for ever for one that does not come.
//   - A communicator is finalized when all ranks have finalized or aborted it.
//
// FailCall makes the functions fail by their names, and launches by "NcclKernel".
#include <nccl.h>

#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/cuda/host_runtime/machine.h"
#include "tests/cuda/host_runtime/nccl_runtime.h"

namespace varve::internal::testing::runtime {
namespace {

// One direction, as one rank sees it.
struct Part {
  bool is_send = false;
  int peer = 0;
  std::byte* bytes = nullptr;
  size_t size = 0;
  bool is_done = false;
};

// All ranks of a communicator.
struct Clique {
  int size = 0;
  int num_joined = 0;
  int num_left = 0;
  std::set<int> devices;
  ncclResult_t error = ncclSuccess;
  std::map<std::pair<int, int>, std::deque<Part*>> sent;  // from and to
};

using Parts = std::vector<Part>;

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool is_aborted = false;
  bool has_left = false;
  Parts to_launch;
  cudaStream_t stream = nullptr;
  int num_polls = 0;  // until it is launched
};
using CommPointer = std::shared_ptr<Comm>;

struct Nccl {
  static Nccl& Get() {
    static Nccl& nccl = *new Nccl;  // streams may outlive main
    return nccl;
  }
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t last_id = 0;
  std::map<uint64_t, std::weak_ptr<Clique>> cliques;
  uintptr_t last_handle = 0;
  std::map<ncclComm_t, CommPointer> comms;
};

// What a thread has called between ncclGroupStart and ncclGroupEnd, for one communicator at most.
struct Group {
  int depth = 0;
  CommPointer comm;
  cudaStream_t stream = nullptr;
  Parts parts;
};
thread_local Group group;

template <typename Body>
ncclResult_t CallNccl(const char* function, const Body& body) {
  if (Call(function, [](Machine&, Lock&) { return cudaSuccess; }) != cudaSuccess) {
    return ncclUnhandledCudaError;
  }
  const Unseen unseen;
  Nccl& nccl = Nccl::Get();
  const std::lock_guard lock(nccl.mutex);
  const ncclResult_t result = body(nccl);
  nccl.changed.notify_all();
  return result;
}

// The same for a function that is about a communicator.
template <typename Body>
ncclResult_t CallOnComm(const char* function, ncclComm_t handle, const Body& body) {
  return CallNccl(function, [&](Nccl& nccl) {
    const auto found = nccl.comms.find(handle);
    return found == nccl.comms.end() ? ncclInvalidArgument : body(nccl, found->second);
  });
}

// Call it under the mutex. Returns whether there was something to receive.
bool Receive(Clique* clique, int rank, Part* part) {
  std::deque<Part*>& sent = clique->sent[{part->peer, rank}];
  if (sent.empty()) return false;
  Part* const other = sent.front();
  sent.pop_front();
  if (other->size != part->size) {
    clique->error = ncclInvalidUsage;
  } else {
    std::memcpy(part->bytes, other->bytes, part->size);
  }
  return other->is_done = part->is_done = true;
}

// The kernel.
void Exchange(const CommPointer& comm, Parts* parts) {
  for (const Part& part : *parts) {
    if (!MayTouch(part.bytes, part.size)) return;
  }
  Nccl& nccl = Nccl::Get();
  Lock lock(nccl.mutex);
  Clique& clique = *comm->clique;
  for (Part& part : *parts) {
    if (part.is_send) clique.sent[{comm->rank, part.peer}].push_back(&part);
  }
  nccl.changed.notify_all();
  nccl.changed.wait(lock, [&] {
    bool is_done = true;
    for (Part& part : *parts) {
      if (!part.is_done && !part.is_send && Receive(&clique, comm->rank, &part)) {
        nccl.changed.notify_all();
      }
    }
    for (const Part& part : *parts) is_done = is_done && part.is_done;
    return is_done || comm->is_aborted;
  });
  for (Part& part : *parts) {
    if (part.is_send) std::erase(clique.sent[{comm->rank, part.peer}], &part);
  }
}

ncclResult_t Launch(const CommPointer& comm) {
  auto parts = std::make_shared<Parts>(std::exchange(comm->to_launch, {}));
  const cudaError_t error =
      testing::Launch("NcclKernel", comm->stream, [comm, parts] { Exchange(comm, parts.get()); });
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t Begin(const CommPointer& comm, cudaStream_t stream, Parts parts) {
  if (parts.empty()) return ncclSuccess;
  if (!comm->to_launch.empty()) return ncclInvalidUsage;  // the caller did not wait
  comm->to_launch = std::move(parts);
  comm->stream = stream;
  comm->num_polls = 2;
  return ncclInProgress;
}

ncclResult_t Progress(const CommPointer& comm) {
  const Clique& clique = *comm->clique;
  if (clique.error != ncclSuccess) return clique.error;
  if (clique.num_joined < clique.size) return ncclInProgress;
  if (comm->has_left) return clique.num_left < clique.size ? ncclInProgress : ncclSuccess;
  if (comm->to_launch.empty()) return ncclSuccess;
  return --comm->num_polls > 0 ? ncclInProgress : Launch(comm);
}

void LeaveClique(Comm* comm) {
  if (!std::exchange(comm->has_left, true)) ++comm->clique->num_left;
}

ncclResult_t AddToGroup(const char* function, ncclComm_t handle, cudaStream_t stream,
                        const Part& part) {
  return CallOnComm(function, handle, [&](Nccl&, const CommPointer& comm) {
    const bool is_other = group.comm != nullptr && (group.comm != comm || group.stream != stream);
    if (group.depth == 0 || is_other) return ncclInvalidUsage;
    group.comm = comm;
    group.stream = stream;
    group.parts.push_back(part);
    return ncclSuccess;
  });
}

std::byte* AsBytes(const void* memory) {
  return static_cast<std::byte*>(const_cast<void*>(memory));
}

}  // namespace
}  // namespace varve::internal::testing::runtime

namespace varve::internal::testing {

size_t NumNcclComms() {
  runtime::Nccl& nccl = runtime::Nccl::Get();
  const std::lock_guard lock(nccl.mutex);
  return nccl.comms.size();
}

}  // namespace varve::internal::testing

using namespace varve::internal::testing::runtime;

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclInvalidUsage ? "invalid usage" : "unhandled cuda error";
}

const char* ncclGetLastError(ncclComm_t /*comm*/) { return "NCCL on the host"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return CallNccl("ncclGetUniqueId", [&](Nccl& nccl) {
    *id = {};
    ++nccl.last_id;
    std::memcpy(id->internal, &nccl.last_id, sizeof nccl.last_id);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return CallNccl("ncclCommInitRankConfig", [&](Nccl& nccl) {
    if (config->blocking != 0) return ncclInvalidArgument;
    uint64_t key = 0;
    std::memcpy(&key, id.internal, sizeof key);
    auto clique = nccl.cliques[key].lock();
    if (clique == nullptr) nccl.cliques[key] = clique = std::make_shared<Clique>();
    clique->size = size;
    ++clique->num_joined;
    if (!clique->devices.insert(current_device).second) clique->error = ncclInvalidUsage;
    *handle = reinterpret_cast<ncclComm_t>(nccl.last_handle += 16);
    nccl.comms[*handle] = std::make_shared<Comm>(Comm{.clique = clique, .rank = rank});
    return ncclInProgress;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  return CallOnComm("ncclCommGetAsyncError", handle, [&](Nccl&, const CommPointer& comm) {
    *error = Progress(comm);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return CallOnComm("ncclCommFinalize", handle, [](Nccl&, const CommPointer& comm) {
    LeaveClique(comm.get());
    return ncclInProgress;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return CallOnComm("ncclCommDestroy", handle, [&](Nccl& nccl, const CommPointer& comm) {
    LeaveClique(comm.get());
    nccl.comms.erase(handle);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  return CallOnComm("ncclCommAbort", handle, [&](Nccl& nccl, const CommPointer& comm) {
    comm->is_aborted = true;
    LeaveClique(comm.get());
    nccl.comms.erase(handle);
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupStart() {
  return CallNccl("ncclGroupStart", [](Nccl&) {
    ++group.depth;
    return ncclSuccess;
  });
}

// Even after an error, the thread is out of the group.
ncclResult_t ncclGroupEnd() {
  const Group ended = std::exchange(group, {});
  return CallNccl("ncclGroupEnd", [&](Nccl&) {
    if (ended.depth != 1) return ncclInvalidUsage;
    return Begin(ended.comm, ended.stream, ended.parts);
  });
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t /*type*/, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return AddToGroup("ncclSend", comm, stream, {true, peer, AsBytes(from), count});
}

ncclResult_t ncclRecv(void* into, size_t count, ncclDataType_t /*type*/, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return AddToGroup("ncclRecv", comm, stream, {false, peer, AsBytes(into), count});
}

ncclResult_t ncclBroadcast(const void* from, void* into, size_t count, ncclDataType_t /*type*/,
                           int root, ncclComm_t handle, cudaStream_t stream) {
  return CallOnComm("ncclBroadcast", handle, [&](Nccl&, const CommPointer& comm) {
    Parts parts{{false, root, AsBytes(into), count}};
    for (int r = 0; comm->rank == root && r < comm->clique->size; ++r) {
      parts.push_back({true, r, AsBytes(from), count});
    }
    return Begin(comm, stream, std::move(parts));
  });
}
