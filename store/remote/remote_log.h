// SPDX-License-Identifier: Apache-2.0
//
// The chain of states in an object store. Thread rule: any thread and any process.
//
// Records that were lost are found out, so that nobody takes the place for an empty one, or an
// earlier state for the newest:
//   - each state that counts is noted by a record of its own, which is made after it. A note that
//     is missing, as after a kill, says less than it could, and nothing wrong.
//   - blobs are put when there is a state already. So a place with blobs has a state.
#pragma once

#include <functional>
#include <vector>

#include "objects/objects.h"
#include "store/remote/remote_state.h"

namespace varve::internal {

class RemoteLog {
 public:
  explicit RemoteLog(Objects* objects) : objects_(objects) {}

  // Returns the newest state. Its number is 0 when there is none yet. kCorruption names the record
  // if there was one, and it is missing.
  Result<RemoteState> ReadNewest() const;

  // Makes a change. `change` gets the newest state, changes it and returns true, or returns false
  // when what it wants is true already. It is called again whenever somebody else was faster, and
  // whenever it is not certain that what was created counts. Returns the state that the change has
  // made, or that in which `change` returned false. That state was the newest at some moment during
  // this call. If the caller knows a state of earlier, which need not be the newest any more, it
  // gives it as `known`, and saves two requests. After kUnavailable and kAborted the change may
  // have been made.
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
  // All rising.
  struct Listed {
    std::vector<uint64_t> states;
    std::vector<uint64_t> notes;
  };
  Result<Listed> List() const;
  Result<std::string> FindBlob() const;
  Status MissingState(uint64_t noted, uint64_t newest) const;
  Status MissingStates(const std::string& blob) const;
  Result<bool> IsNewest(uint64_t number) const;
  void Note(uint64_t number) const;
  void RemoveOld() const;

  Objects* const objects_;
};

// Reads a part of a blob whole and verifies its digest. kCorruption: it is damaged or missing.
Result<std::string> ReadRange(const Objects& objects, const BlobRange& range);

}  // namespace varve::internal
