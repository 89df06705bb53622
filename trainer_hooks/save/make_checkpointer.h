// SPDX-License-Identifier: Apache-2.0
//
// Makes the checkpointer over a store that is open already.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "trainer_hooks/load/load_through.h"
#include "trainer_hooks/state/save_state.h"
#include "varve/async_checkpointer.h"

namespace varve::internal {

class BackgroundPusher;

// What a checkpointer of one rank of many knows of the group, and the functions by which it asks
// about the other ranks and tells them something. One of its threads at a time calls them.
struct GroupSide {
  // Adds to the stats of each save what other ranks know of it, before anyone sees them.
  std::function<void(SaveStats*)> annotate;
  // Returns true if what has failed may be tried again without the other ranks.
  std::function<bool()> may_try_again;
  // Of the group's retention, which another rank may carry out.
  uint64_t keep_every = 0;
  // It is called when a save has ended and is not tried again.
  std::function<void(uint64_t step, const SaveOptions&, const Status&)> ended;
};

// The checkpointer of one rank, which may be one of many.
class OwnCheckpointer : public AsyncCheckpointer {
 public:
  // Does what Restore does, through `read`. The step must be in the store.
  virtual Result<LoadReport> RestoreThrough(const CheckpointId& id, const LoadOptions& options,
                                            RegionReader* read, TrainingState* into) = 0;
  // Do what Prewarm and BeginSave do, with a copy that was made already. BeginSaveOf waits for the
  // save before, and never skips.
  virtual Status PrewarmFor(const std::shared_ptr<const StateTensors>& tensors) = 0;
  virtual Status BeginSaveOf(uint64_t step, std::shared_ptr<const SaveState> state,
                             const BeginOptions& options) = 0;
  // Returns true while a save is in progress.
  virtual bool IsBusy() const = 0;
  // Reports that this step is not saved.
  virtual void Skip(uint64_t step) = 0;
};

// kInvalidArgument: the step is of another run than that of the checkpointer.
Status RequireRun(const CheckpointId& id, std::string_view run);
// kInvalidArgument: an option has a value that is not allowed.
Status ValidateOptions(const CheckpointerOptions& options);
// Returns how many threads a save uses.
int SaveThreads(const CheckpointerOptions& options);
// Returns the options with which such a store is opened.
StoreOptions StoreOptionsOf(const CheckpointerOptions& options);
// The file system of `path` is asked how much is free. `group` is empty if the rank is alone.
// kUnavailable: the system has no more threads. Precondition: the options are valid.
Result<std::unique_ptr<OwnCheckpointer>> MakeCheckpointer(std::unique_ptr<Store> store,
                                                          const std::filesystem::path& path,
                                                          const CheckpointerOptions& options,
                                                          GroupSide group = {});
// The same for a rank that is alone, with a pusher, which may be null.
Result<std::unique_ptr<OwnCheckpointer>> MakePushingCheckpointer(
    std::unique_ptr<Store> store, const std::filesystem::path& path,
    const CheckpointerOptions& options, std::unique_ptr<BackgroundPusher> pusher);

}  // namespace varve::internal
