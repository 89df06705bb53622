// SPDX-License-Identifier: Apache-2.0
#include "store/ops/damaged_steps.h"

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/util.h"
#include "store/ops/step_verifier.h"

namespace varve::internal {

Status NameDamagedSteps(const StoreImpl& store, const CheckOptions& options, CheckReport* report) {
  std::set<StepKey> steps;
  VARVE_RETURN_IF_ERROR(AddAllSteps(*store.database(), &steps));
  std::optional<ChunkPresence> presence;
  if (!options.read_data || options.read_data_fraction < 1) {
    VARVE_ASSIGN_OR_RETURN(presence, ChunkPresence::Of(store));
  }
  StepVerifier verifier(&store, std::move(presence));
  for (const StepKey& step : steps) {
    const Result<std::string> name = store.RunName(step.run);
    if (IsShortage(name.status())) return name.status();
    const bool has_name = name.ok() && !name->empty();
    const std::string run = has_name ? *name : "#" + std::to_string(step.run);
    StepFaults faults;
    VARVE_RETURN_IF_ERROR(verifier.Verify(
        step, run, [](uint64_t) {}, &faults));
    if (faults.empty() && has_name) {  // its tags may be lost
      const Status opened = store.OpenCheckpoint(run, step.step).status();
      if (IsShortage(opened)) return opened;
      if (!opened.ok()) faults.Add("", opened.message());
      if (opened.ok()) continue;
    }
    report->damaged_steps.push_back({run, step.step});
    report->errors.push_back(StepName(run, step.step) +
                             (!faults.empty()
                                  ? " cannot be read whole: " + faults.reason
                                  : " cannot be opened: the name of its run is lost" +
                                        (name.ok() ? "" : ": " + name.status().message())));
  }
  return Status::Ok();
}

}  // namespace varve::internal
