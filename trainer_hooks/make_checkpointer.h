// SPDX-License-Identifier: Apache-2.0
//
// The checkpointer over a store that is open already.
#pragma once

#include <filesystem>
#include <memory>

#include "varve/async_checkpointer.h"

namespace varve {

// The checkpointer of one rank, which may be one of many.
class OwnCheckpointer : public AsyncCheckpointer {
 public:
  // A save is under way.
  virtual bool IsBusy() const = 0;
  // Reports that this step is not saved.
  virtual void Skip(uint64_t step) = 0;
};

// kInvalidArgument: options that cannot be.
Status ValidateOptions(const CheckpointerOptions& options);
// kInvalidArgument names what is wrong with a state that is to be saved.
Status ValidateState(const TrainingState& state);
// How such a store is to be opened.
StoreOptions StoreOptionsOf(const CheckpointerOptions& options);
// `path`: where the file system is asked how much is free. Precondition: valid options.
std::unique_ptr<OwnCheckpointer> MakeCheckpointer(std::unique_ptr<Store> store,
                                                  const std::filesystem::path& path,
                                                  const CheckpointerOptions& options);

}  // namespace varve
