// SPDX-License-Identifier: Apache-2.0
//
// The checkpointer over a store that is open already.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "trainer_hooks/load/load_through.h"
#include "trainer_hooks/state/save_state.h"
#include "varve/async_checkpointer.h"

namespace varve::internal {

class BackgroundPusher;

// What a checkpointer of one rank of many asks, and tells, those who know of the others. Called by
// one of its threads at a time.
struct GroupSide {
  // Adds to the metrics of each save what others know of it, before anyone sees them.
  std::function<void(SaveStats*)> annotate;
  // Returns true if what has failed may be tried again without the other ranks.
  std::function<bool()> may_try_again;
  // A save has ended, and is not tried again.
  std::function<void(uint64_t step, const SaveOptions&, const Status&)> ended;
};

// The checkpointer of one rank, which may be one of many.
class OwnCheckpointer : public AsyncCheckpointer {
 public:
  // As Restore, through `read`. The step must be one of the store.
  virtual Result<LoadReport> RestoreThrough(const CheckpointId& id, const LoadOptions& options,
                                            RegionReader* read, TrainingState* into) = 0;
  // As Prewarm and BeginSave, of a copy that was made already. BeginSaveOf waits for the save
  // before, and never skips.
  virtual Status PrewarmFor(const std::shared_ptr<const StateTensors>& tensors) = 0;
  virtual Status BeginSaveOf(uint64_t step, std::shared_ptr<const SaveState> state,
                             const BeginOptions& options) = 0;
  // A save is under way.
  virtual bool IsBusy() const = 0;
  // Reports that this step is not saved.
  virtual void Skip(uint64_t step) = 0;
};

// kInvalidArgument: the step is of another run than that of the checkpointer.
Status RequireRun(const CheckpointId& id, std::string_view run);
// kInvalidArgument: options that cannot be.
Status ValidateOptions(const CheckpointerOptions& options);
// Threads of a save.
int SaveThreads(const CheckpointerOptions& options);
// How such a store is to be opened.
StoreOptions StoreOptionsOf(const CheckpointerOptions& options);
// `path`: where the file system is asked how much is free. `group`: empty when the rank is alone.
// kUnavailable: there are no threads for it. Precondition: valid options.
Result<std::unique_ptr<OwnCheckpointer>> MakeCheckpointer(std::unique_ptr<Store> store,
                                                          const std::filesystem::path& path,
                                                          const CheckpointerOptions& options,
                                                          GroupSide group = {});
// The same for a rank that is alone, with a pusher, which may be null.
Result<std::unique_ptr<OwnCheckpointer>> MakePushingCheckpointer(
    std::unique_ptr<Store> store, const std::filesystem::path& path,
    const CheckpointerOptions& options, std::unique_ptr<BackgroundPusher> pusher);

}  // namespace varve::internal
