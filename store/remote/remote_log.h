// SPDX-License-Identifier: Apache-2.0
//
// The chain of states in an object store. Thread rule: any thread and any process.
#pragma once

#include <functional>
#include <vector>

#include "objects/objects.h"
#include "store/remote/remote_state.h"

namespace varve::internal {

class RemoteLog {
 public:
  explicit RemoteLog(Objects* objects) : objects_(objects) {}

  // Returns the newest state. Its number is 0 when there is none yet.
  Result<RemoteState> ReadNewest() const;

  // Makes a change. `change` gets the newest state, changes it and returns true, or returns false
  // when what it wants is true already. It is called again whenever somebody else was faster, and
  // whenever it is not certain that what was created counts. Returns the state that the change has
  // made, or that in which `change` returned false. That state was the newest at some moment during
  // this call. If the caller knows a state of earlier, which need not be the newest any more, it
  // gives it as `known`, and saves two requests.
  using Change = std::function<Result<bool>(RemoteState*)>;
  Result<RemoteState> Append(const Change& change, const RemoteState* known = nullptr);

  // Returns the snapshot with this number, or the newest. kNotFound: there is none.
  Result<RemoteSnapshot> ChooseSnapshot(const RemoteState& state,
                                        std::optional<uint64_t> number) const;
  // Returns the body of a snapshot, verified. kFailedPrecondition: it has been removed since.
  Result<SnapshotBody> ReadBody(const RemoteSnapshot& snapshot) const;
  // Returns the error of a read of what a snapshot names, or kFailedPrecondition if the snapshot
  // has been removed since.
  Status WhyUnreadable(const RemoteSnapshot& snapshot, Status error) const;

 private:
  Result<std::vector<std::string>> ListStates() const;
  Result<bool> IsNewest(uint64_t number) const;
  void RemoveOld() const;

  Objects* const objects_;
};

// Reads a part of a blob whole and verifies its digest. kCorruption: it is damaged or missing.
Result<std::string> ReadRange(const Objects& objects, const BlobRange& range);

}  // namespace varve::internal
