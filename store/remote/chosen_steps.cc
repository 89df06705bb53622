// SPDX-License-Identifier: Apache-2.0
//
// The other store may lose a table file at any moment, and may lie in another file system. So each
// link leads to a descriptor of this process, which stays good.
#include "store/remote/chosen_steps.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "base/util.h"
#include "store/format/format_file.h"
#include "varve/step.h"
#include "varve/store.h"

namespace varve::internal {

namespace fs = std::filesystem;

Result<std::unique_ptr<ChosenSteps>> ChosenSteps::Make(const fs::path& store,
                                                       std::span<const std::string> steps) {
  std::unique_ptr<ChosenSteps> made(new ChosenSteps());
  VARVE_RETURN_IF_ERROR(made->folder_.status());
  VARVE_RETURN_IF_ERROR(made->Link(store));
  VARVE_RETURN_IF_ERROR(made->DropOthers(steps));
  return made;
}

Status ChosenSteps::Link(const fs::path& store) {
  VARVE_ASSIGN_OR_RETURN(state_, LocalState::Capture(store));
  const fs::path db = path() / "db";
  std::error_code error;
  fs::create_directory(db, error);
  for (const auto& table : state_.tables) {
    if (!error) fs::create_symlink(table->OpenName(), db / table->name(), error);
  }
  if (error) return ErrnoStatus("make links in", db, error.value());
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(db / state_.manifest_name, state_.manifest));
  VARVE_RETURN_IF_ERROR(WriteFileAtomically(db / "CURRENT", state_.manifest_name + "\n"));
  // The new tables of the drop get no tags, so what is pushed is not sealed.
  FormatFile format = state_.format;
  format.read_compatible &= ~kSealedFeature;
  return WriteFormatFile(path(), format);
}

Status ChosenSteps::DropOthers(std::span<const std::string> steps) const {
  VARVE_ASSIGN_OR_RETURN(const auto store, Store::Open(path()));
  VARVE_ASSIGN_OR_RETURN(const auto chosen, ResolveSteps(*store, steps));
  for (const CheckpointId& id : chosen) {
    VARVE_RETURN_IF_ERROR(store->OpenCheckpoint(id.run, id.step).status());
  }
  std::vector<CheckpointId> others;
  VARVE_ASSIGN_OR_RETURN(const auto runs, store->ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_ASSIGN_OR_RETURN(const auto checkpoints, store->ListCheckpoints(run.name));
    for (const CheckpointInfo& checkpoint : checkpoints) {
      const bool is_chosen =
          std::any_of(chosen.begin(), chosen.end(), [&checkpoint](const CheckpointId& id) {
            return id.run == checkpoint.id.run && id.step == checkpoint.id.step;
          });
      if (!is_chosen) others.push_back(checkpoint.id);
    }
  }
  if (others.empty()) return Status::Ok();
  return store->Drop(others).status();
}

}  // namespace varve::internal
