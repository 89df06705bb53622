// SPDX-License-Identifier: Apache-2.0
//
// What a store must hold, in maps. Each call does what the call of Store with the same name does,
// and returns the code that this one must return. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "varve/store.h"

namespace varve::internal::testing {

// The answers to questions about a store: a line for each. An error starts with kError, and its key
// is what all questions start with to which there is no answer.
using Answers = std::map<std::string, std::string>;
inline constexpr char kError = '!';
std::string ErrorText(const Status& status);

// Asks everything but what checkpoints hold.
Answers Ask(const Store& store);
// The question, and both answers. Empty: they are the same.
std::string FirstDifference(const Answers& found, const Answers& expected);
// The same for a damaged store, in which an error is no wrong answer.
std::string FirstWrongAnswer(const Answers& found, const Answers& expected);

class Model {
 public:
  struct NewStep {
    OnExisting on_existing = OnExisting::kError;
    std::optional<uint64_t> parent;
    uint8_t content = 0;
    std::map<std::string, double> metrics;
    std::vector<std::string> tags;
  };

  StatusCode Save(const CheckpointId& id, const NewStep& step);
  StatusCode SetTag(const CheckpointId& id, const std::string& tag);
  StatusCode RemoveTag(const std::string& run, const std::string& tag);
  StatusCode SetMetrics(const CheckpointId& id, const std::map<std::string, double>& metrics);
  StatusCode Fork(const std::string& run, const std::string& new_run, std::optional<uint64_t> at);
  StatusCode Rewind(const std::string& run, uint64_t to);
  StatusCode Drop(std::span<const CheckpointId> ids);
  // Copies until the first error.
  StatusCode CopyTo(Model* to, std::span<const CheckpointId> ids, OnExisting on_existing) const;

  Answers Ask() const;
  bool Has(const CheckpointId& id) const { return Find(id) != nullptr; }
  std::vector<CheckpointId> All() const;
  std::vector<CheckpointId> StepsOf(const std::string& run) const;
  // Those of the run that a policy with these rules does not keep.
  std::vector<CheckpointId> ForgottenBy(const std::string& run, uint64_t last,
                                        uint64_t every) const;
  uint8_t ContentOf(const CheckpointId& id) const { return Find(id)->content; }

 private:
  using Key = std::pair<uint32_t, uint64_t>;  // the number of a run, and a step
  struct Checkpoint {
    uint8_t content = 0;
    std::optional<Key> parent;
    std::map<std::string, double> metrics;
  };
  struct Run {
    uint32_t number = 0;
    std::optional<Key> forked_from;
    std::map<uint64_t, Checkpoint> steps;
    std::map<std::string, uint64_t> tags;
  };

  const Checkpoint* Find(const CheckpointId& id) const;
  // Gives the steps from `first` on to a new run RUN~k, and returns that.
  std::string Move(const std::string& run, uint64_t first);
  // The name of the run and the step. Empty: the run is no more.
  std::string NameOf(const std::optional<Key>& key) const;
  void AskStep(const CheckpointId& id, const Run& run, Answers* answers) const;

  std::map<std::string, Run> runs_;
  uint32_t next_number_ = 1;
};

}  // namespace varve::internal::testing
