// SPDX-License-Identifier: Apache-2.0
//
// One decision for all ranks: each call does its local part and then agrees on the outcome by one
// gather of statuses. What runs in the background speaks through the log of the group alone.
#include "varve/group_checkpointer.h"

#include <utility>

#include "store/step_expr.h"
#include "store/util.h"
#include "trainer_hooks/make_checkpointer.h"
#include "varve/group.h"

namespace varve {
namespace {

// A status as bytes: its code, then the message.
std::string Encode(const Status& status) {
  return std::string(1, static_cast<char>(status.code())) + std::string(status.message());
}

// Ok when all ranks are; else the error of the lowest rank that has one, on all of them.
Status Agree(RankGroup* ranks, const Status& mine) {
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks->AllGather(AsBytes(Encode(mine))));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string_view status = AsString(all[rank]);
    if (status.empty() || status[0] == static_cast<char>(StatusCode::kOk)) continue;
    return Status(static_cast<StatusCode>(status[0]),
                  "rank " + std::to_string(rank) + ": " + std::string(status.substr(1)));
  }
  return Status::Ok();
}

// A number that rank 0 finds, or its error.
template <typename Find>
Result<uint64_t> FromRankZero(RankGroup* ranks, Find find) {
  Result<uint64_t> found = uint64_t{0};
  if (ranks->rank() == 0) found = find();
  VARVE_RETURN_IF_ERROR(Agree(ranks, found.status()));
  const std::string text = found.ok() ? std::to_string(*found) : "";
  VARVE_ASSIGN_OR_RETURN(const auto bytes, ranks->Broadcast(AsBytes(text), 0));
  return std::stoull(std::string(AsString(bytes)));
}

class GroupCheckpointer : public AsyncCheckpointer {
 public:
  GroupCheckpointer(std::unique_ptr<AsyncCheckpointer> own, std::string run, RankGroup* ranks)
      : own_(std::move(own)), run_(std::move(run)), ranks_(ranks) {}

  Status Prewarm(const TrainingState& state) override {
    return Agree(ranks_, own_->Prewarm(state));
  }
  Result<bool> BeginSave(uint64_t step, const TrainingState& state,
                         const BeginOptions& options) override {
    VARVE_RETURN_IF_ERROR(Agree(ranks_, own_->BeginSave(step, state, options).status()));
    return true;
  }
  Status AwaitStaged() override { return Agree(ranks_, own_->AwaitStaged()); }
  Status Wait() override { return Agree(ranks_, own_->Wait()); }
  Status ReleaseStaging() override { return Agree(ranks_, own_->ReleaseStaging()); }

  Result<LoadReport> Restore(std::string_view step, const LoadOptions& options,
                             TrainingState* into) override {
    VARVE_RETURN_IF_ERROR(Wait());
    VARVE_ASSIGN_OR_RETURN(const uint64_t number,
                           FromRankZero(ranks_, [&]() -> Result<uint64_t> {
                             VARVE_ASSIGN_OR_RETURN(const CheckpointId id,
                                                    ResolveStepOfRun(own_->store(), run_, step));
                             return id.step;
                           }));
    Result<LoadReport> report = own_->Restore(std::to_string(number), options, into);
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

  const std::unique_ptr<AsyncCheckpointer> own_;
  const std::string run_;
  RankGroup* const ranks_;
};

Result<std::unique_ptr<Store>> Join(const std::filesystem::path& root, RankGroup* ranks,
                                    const CheckpointerOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const uint64_t epoch, FromRankZero(ranks, [&] {
    return Group::StartEpoch(root, static_cast<uint32_t>(ranks->size()));
  }));
  return Group::Join(root, {.rank = static_cast<uint32_t>(ranks->rank()),
                            .epoch = epoch,
                            .store = StoreOptionsOf(options)});
}

}  // namespace

Result<std::unique_ptr<AsyncCheckpointer>> OpenWithRanks(const std::filesystem::path& root,
                                                         RankGroup* ranks,
                                                         const CheckpointerOptions& options) {
  Status valid = ValidateOptions(options);
  if (valid.ok() && options.when_busy != WhenBusy::kWait) {
    valid = Status::InvalidArgument("ranks cannot skip saves: when_busy must be kWait");
  }
  VARVE_RETURN_IF_ERROR(Agree(ranks, valid));
  Result<std::unique_ptr<Store>> store = Join(root, ranks, options);
  VARVE_RETURN_IF_ERROR(Agree(ranks, store.status()));
  CheckpointerOptions own = options;
  if (ranks->rank() != 0) own.retention.reset();
  return std::unique_ptr<AsyncCheckpointer>(std::make_unique<GroupCheckpointer>(
      MakeCheckpointer(*std::move(store), root, own), options.run, ranks));
}

}  // namespace varve
