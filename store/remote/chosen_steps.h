// SPDX-License-Identifier: Apache-2.0
//
// A store that holds only some steps of another one, for a push of chosen steps. It lies in a
// temporary folder. Its table files are links to those of the other store, except the few that hold
// both chosen and other steps. Thread rule: one thread.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "store/remote/local_state.h"
#include "store/remote/scratch_folder.h"
#include "varve/result.h"

namespace varve::internal {

class ChosenSteps {
 public:
  // `steps` are step expressions. A writer may go on meanwhile. kNotFound names what is missing.
  static Result<std::unique_ptr<ChosenSteps>> Make(const std::filesystem::path& store,
                                                   std::span<const std::string> steps);

  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  ChosenSteps() = default;
  Status Link(const std::filesystem::path& store);
  Status DropOthers(std::span<const std::string> steps) const;

  LocalState state_;  // holds the files open to which the links lead
  ScratchFolder folder_;
};

}  // namespace varve::internal
