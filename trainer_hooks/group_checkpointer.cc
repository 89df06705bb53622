// SPDX-License-Identifier: Apache-2.0
//
// One decision for all ranks: each call does its local part and then agrees on the outcome. What
// runs in the background speaks through the log of the group alone.
#include "varve/group_checkpointer.h"

#include <utility>

#include "store/step_expr.h"
#include "trainer_hooks/agree.h"
#include "trainer_hooks/make_checkpointer.h"
#include "varve/group.h"

namespace varve {
namespace {

class GroupCheckpointer : public AsyncCheckpointer {
 public:
  GroupCheckpointer(std::unique_ptr<OwnCheckpointer> own, const CheckpointerOptions& options,
                    RankGroup* ranks)
      : own_(std::move(own)), run_(options.run), when_busy_(options.when_busy), ranks_(ranks) {}

  Status Prewarm(const TrainingState& state) override {
    return Agree(ranks_, own_->Prewarm(state));
  }
  Result<bool> BeginSave(uint64_t step, const TrainingState& state,
                         const BeginOptions& options) override {
    if (when_busy_ == WhenBusy::kSkip) {
      VARVE_RETURN_IF_ERROR(AwaitStaged());
      VARVE_ASSIGN_OR_RETURN(const bool is_busy, IsTrueOnAny(ranks_, own_->IsBusy()));
      if (is_busy) {
        own_->Skip(step);
        return false;
      }
    }
    // What can fail on one rank alone fails before any rank begins: else the others would wait for it.
    Status ready = own_->Wait();
    if (ready.ok()) ready = ValidateState(state);
    if (ready.ok()) ready = own_->Prewarm(state);
    VARVE_RETURN_IF_ERROR(Agree(ranks_, ready));
    VARVE_RETURN_IF_ERROR(Agree(ranks_, own_->BeginSave(step, state, options).status()));
    return true;
  }
  Status AwaitStaged() override { return Agree(ranks_, own_->AwaitStaged()); }
  Status Wait() override { return Agree(ranks_, own_->Wait()); }
  Status ReleaseStaging() override { return Agree(ranks_, own_->ReleaseStaging()); }

  Result<LoadReport> Restore(std::string_view step, const LoadOptions& options,
                             TrainingState* into) override {
    VARVE_RETURN_IF_ERROR(Wait());
    VARVE_ASSIGN_OR_RETURN(const std::string number,
                           FromRankZero(ranks_, [&]() -> Result<std::string> {
                             VARVE_ASSIGN_OR_RETURN(const CheckpointId id,
                                                    ResolveStepOfRun(own_->store(), run_, step));
                             return std::to_string(id.step);
                           }));
    VARVE_ASSIGN_OR_RETURN(const LoadOptions with, WithNamesOfAllRanks(ranks_, options, *into));
    Result<LoadReport> report = own_->Restore(number, with, into);
    VARVE_RETURN_IF_ERROR(Agree(ranks_, report.status()));
    return report;
  }

  Status SetMetrics(uint64_t step, const std::map<std::string, double>& metrics) override {
    return Agree(ranks_, IsFirst() ? own_->SetMetrics(step, metrics) : Status::Ok());
  }
  Status SetTag(uint64_t step, std::string_view tag) override {
    return Agree(ranks_, IsFirst() ? own_->SetTag(step, tag) : Status::Ok());
  }
  // Every rank closes, also after an error of another.
  Status Close() override { return Agree(ranks_, own_->Close()); }

  std::optional<SaveMetrics> last_metrics() const override { return own_->last_metrics(); }
  Store& store() override { return own_->store(); }

 private:
  bool IsFirst() const { return ranks_->rank() == 0; }

  const std::unique_ptr<OwnCheckpointer> own_;
  const std::string run_;
  const WhenBusy when_busy_;
  RankGroup* const ranks_;
};

Result<std::unique_ptr<Store>> Join(const std::filesystem::path& root, RankGroup* ranks,
                                    const CheckpointerOptions& options) {
  VARVE_ASSIGN_OR_RETURN(
      const std::string epoch, FromRankZero(ranks, [&]() -> Result<std::string> {
        VARVE_ASSIGN_OR_RETURN(const uint64_t begun,
                               Group::StartEpoch(root, static_cast<uint32_t>(ranks->size())));
        return std::to_string(begun);
      }));
  return Group::Join(root, {.rank = static_cast<uint32_t>(ranks->rank()),
                            .epoch = std::stoull(epoch),
                            .store = StoreOptionsOf(options)});
}

}  // namespace

Result<std::unique_ptr<AsyncCheckpointer>> OpenWithRanks(const std::filesystem::path& root,
                                                         RankGroup* ranks,
                                                         const CheckpointerOptions& options) {
  VARVE_RETURN_IF_ERROR(Agree(ranks, ValidateOptions(options)));
  Result<std::unique_ptr<Store>> store = Join(root, ranks, options);
  VARVE_RETURN_IF_ERROR(Agree(ranks, store.status()));
  CheckpointerOptions own = options;
  own.when_busy = WhenBusy::kWait;  // whether to skip is decided by all
  if (ranks->rank() != 0) own.retention.reset();
  return std::unique_ptr<AsyncCheckpointer>(std::make_unique<GroupCheckpointer>(
      MakeCheckpointer(*std::move(store), root, own), options, ranks));
}

}  // namespace varve
