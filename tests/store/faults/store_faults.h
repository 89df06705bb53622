// SPDX-License-Identifier: Apache-2.0
//
// Operations of one store while calls fail. One thread at a time.
#pragma once

#include <string>
#include <vector>

#include "tests/store/faults/sweep.h"

namespace varve::internal::testing {

class FaultsTest : public FaultSweepTest {
 protected:
  using Operation = std::function<Status()>;
  using Change = std::function<void(State* state)>;

  // Makes the store that each round starts from: steps 1 to 3, each a delta of the one before it.
  // Step 1 has a tag and a metric. Then `more` changes the store, and says so in `before_`.
  void MakeTemplate(const std::function<void()>& more = [] {});

  void ReplaceTemplate(const std::filesystem::path& by);

  // `change` says what the operation changes of what the store holds. An operation may close the
  // store. Else the same store, still open, must hold what it should.
  Scenario OfStore(Operation operation, const Change& change);
  // Each round starts so.
  void StartFromTemplate();
  void CopyTemplate();  // the same, but nobody opens the store
  void RemoveRound();

  Status SaveStep(uint64_t step, uint64_t content, OnExisting on_existing = OnExisting::kError) {
    return SaveContentOf(store_.get(), {"main", step}, content, on_existing);
  }

  // What is wrong with the store after the operation has said `status`. First a copy of its folder
  // is judged, then the same store, after the operation was called again if that was an error.
  // Empty = nothing.
  std::string JudgeOperation(const Operation& operation, const Status& status, const State& before,
                             const State& after);

  State before_;

 private:
  std::string JudgeDisk(const std::vector<State>& allowed);
  std::string OpenIfClosed();
  std::string Retry(const Operation& operation, const Status& status);
  std::string JudgeUse(State state);
  std::filesystem::path template_path() const { return folder_.path() / "template"; }
};

}  // namespace varve::internal::testing
