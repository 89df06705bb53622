// SPDX-License-Identifier: Apache-2.0
//
// A load plans, checks and reads. Only the last changes the target. The trainer state and the items
// are read before the tensors and put into the target after them, so they are either the old or the
// new ones.
#include "varve/load.h"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "base/guarded.h"
#include "base/seconds_since.h"
#include "base/util.h"
#include "store/shards/regions.h"
#include "trainer_hooks/load/fill.h"
#include "trainer_hooks/load/load_plan.h"
#include "trainer_hooks/load/rank_states.h"
#include "trainer_hooks/state/item_name.h"
#include "trainer_hooks/state/item_variables.h"
#include "trainer_hooks/state/validate_state.h"

namespace varve::internal {

namespace {

std::string NameOf(const CheckpointReader& reader) {
  return StepName(reader.info().id.run, reader.info().id.step);
}

// Everything that is not a tensor.
struct Rest {
  std::optional<TrainerProgress> trainer;
  ItemPlan items;
};

// Adds to the plan what it says about items of the target that stand for variables.
void NoteItems(const ItemPlan& items, bool may_be_dropped, Strictness strictness, LoadPlan* plan) {
  plan->faults.insert(plan->faults.end(), items.faults.begin(), items.faults.end());
  for (const StateItem& item : items.missing) {
    if (may_be_dropped && item.rank.has_value()) continue;
    if (strictness == Strictness::kIgnoreAll) {
      plan->report.missing.push_back(ItemText(item));
    } else {
      plan->faults.push_back(ItemText(item) + ": missing in the checkpoint");
    }
  }
}

Result<Rest> ReadRest(const CheckpointReader& reader, const std::optional<Topology>& saved_by,
                      const LoadOptions& options, const TrainingState& into, LoadPlan* plan) {
  Rest rest;
  if (options.rank.has_value() && !AreOtherRanks(saved_by, into.topology)) {
    VARVE_ASSIGN_OR_RETURN(rest.trainer, reader.ReadTrainerProgressFor(*options.rank));
  } else {
    VARVE_ASSIGN_OR_RETURN(rest.trainer, reader.ReadTrainerProgress());
  }
  VARVE_ASSIGN_OR_RETURN(const auto names, reader.ListBytes());
  std::vector<StateItem> items;
  for (const std::string& stored : names) {
    const ItemName item = DecodeItemName(stored);
    VARVE_ASSIGN_OR_RETURN(auto value, reader.ReadBytes(stored));
    items.push_back({std::string(item.name), item.rank, std::move(value)});
  }
  TrainerProgress none;
  VARVE_RETURN_IF_ERROR(FitRankStates(saved_by, into.topology, options.rank_states,
                                      rest.trainer ? &*rest.trainer : &none, &items,
                                      &plan->report.dropped));
  rest.items = PlanItems(into.items, std::move(items));
  const bool may_be_dropped =
      options.rank_states == RankStates::kDrop && AreOtherRanks(saved_by, into.topology);
  NoteItems(rest.items, may_be_dropped, options.strictness, plan);
  return rest;
}

void Replace(Rest rest, const LoadOptions& options, TrainingState* into) {
  if (rest.trainer.has_value()) {
    if (!options.lr_scheduler) rest.trainer->lr_scheduler = std::move(into->trainer.lr_scheduler);
    into->trainer = *std::move(rest.trainer);
  }
  into->items = FillVariables(std::move(rest.items));
}

// Checks that a tensor on a device lies where the state says.
Status CheckPlace(const StateTensor& tensor, DeviceTensorSource* devices) {
  VARVE_RETURN_IF_ERROR(ValidatePlace(tensor, devices));
  const Result<uint64_t> bytes = NumBytes(tensor.dtype, tensor.shape);
  if (tensor.device == kHost || !bytes.ok()) return Status::Ok();  // the plan has the fault
  return devices->Check({tensor.device, {static_cast<const std::byte*>(tensor.data), *bytes}})
      .WithContext("tensor " + tensor.name);
}

Status AllFaults(const CheckpointId& id, const std::vector<std::string>& faults) {
  std::string message = StepName(id.run, id.step) + " does not fit:";
  for (const std::string& fault : faults) message += "\n" + fault;
  return Status::InvalidArgument(std::move(message));
}

struct Fitted {
  std::vector<TensorInfo> stored;  // without those of other ranks
  LoadOptions options;
  std::vector<std::string> dropped;
};

Result<Fitted> Fit(const CheckpointReader& reader, std::vector<TensorInfo> stored,
                   const std::optional<Topology>& saved_by, const LoadOptions& options,
                   const TrainingState& into) {
  Fitted fitted{std::move(stored), options, {}};
  const Status fits =
      FitRankTensors(saved_by, into.topology, &fitted.stored, &fitted.options, &fitted.dropped);
  if (!fits.ok()) return fits.WithContext(NameOf(reader));
  return fitted;
}

// What there is to load. A group is not asked for more than its catalogue says if that will do: to
// list all of it, each rank would open the members of all.
Result<Fitted> FindStored(const CheckpointReader& reader, const std::optional<Topology>& saved_by,
                          const LoadOptions& options, const TrainingState& into) {
  VARVE_ASSIGN_OR_RETURN(ShardOutline outline, reader.OutlineShards());
  std::vector<TensorInfo> tensors = JoinShards(std::move(outline.shards));
  VARVE_ASSIGN_OR_RETURN(Fitted fitted, Fit(reader, std::move(tensors), saved_by, options, into));
  if (outline.has_details || !NeedsDetails(fitted.stored, fitted.options, into)) return fitted;
  VARVE_ASSIGN_OR_RETURN(auto stored, reader.List());
  return Fit(reader, std::move(stored), saved_by, options, into);
}

Result<LoadReport> Load(const CheckpointReader& reader, const LoadOptions& options,
                        RegionReader* read, TrainingState* into) {
  const auto started = std::chrono::steady_clock::now();
  const std::string step = NameOf(reader);
  VARVE_ASSIGN_OR_RETURN(const auto saved_by, reader.ReadTopology());
  const Status topologies = CompareTopologies(saved_by, into->topology, options);
  if (!topologies.ok()) return topologies.WithContext(step);
  VARVE_ASSIGN_OR_RETURN(Fitted fitted, FindStored(reader, saved_by, options, *into));
  LoadPlan plan = PlanLoad(fitted.stored, fitted.options, *into);
  plan.report.dropped = std::move(fitted.dropped);
  for (const StateTensor& tensor : into->tensors) {
    const Status there = CheckPlace(tensor, options.devices.get());
    if (!there.ok()) plan.faults.push_back(there.message());
  }
  VARVE_RETURN_IF_ERROR(CheckTies(reader, &plan));
  const CheckpointId& id = reader.info().id;
  Result<Rest> rest = Rest();
  if (options.trainer_state) rest = ReadRest(reader, saved_by, options, *into, &plan);
  if (!plan.faults.empty()) return AllFaults(id, plan.faults);
  if (!rest.ok()) return rest.status().WithContext(step);
  VARVE_RETURN_IF_ERROR(FillTargets(reader, plan, read, options.devices.get()));
  if (options.trainer_state) Replace(*std::move(rest), options, into);
  LoadReport report = std::move(plan.report);
  report.id = id;
  report.stored_bytes = reader.info().stored_bytes;
  report.seconds = SecondsSince(started);
  return report;
}

}  // namespace

Result<LoadReport> LoadThrough(const CheckpointReader& reader, const LoadOptions& options,
                               RegionReader* read, TrainingState* into) {
  return Guarded("loading a checkpoint", [&] {
    const CheckpointId& id = reader.info().id;
    return Guarded("loading " + StepName(id.run, id.step),
                   [&] { return Load(reader, options, read, into); });
  });
}

}  // namespace varve::internal

namespace varve {
using namespace internal;

Result<LoadReport> LoadState(const CheckpointReader& reader, const LoadOptions& options,
                             TrainingState* into) {
  LoneReader read;
  return LoadThrough(reader, options, &read, into);
}

}  // namespace varve
