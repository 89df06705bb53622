// SPDX-License-Identifier: Apache-2.0
#include "tests/store/model/player.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "store/db/store_impl.h"
#include "tests/store/model/content.h"
#include "tests/store/model/copy_folder.h"
#include "tests/store/model/model.h"
#include "varve/varve.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

// A store, its model, and what stands beside it.
struct Side {
  fs::path path;
  Model model;
  std::unique_ptr<Store> store;
  std::unique_ptr<Store> reader;
  std::optional<Model> backup;

  fs::path BackupPath() const { return path.string() + ".backup"; }
  fs::path CrashPath() const { return path.string() + ".crash"; }
};

Status Expect(const char* what, StatusCode expected, const Status& status) {
  if (status.code() == expected) return Status::Ok();
  return Status::Aborted(std::string(what) + " said \"" + status.ToString() + "\", expected \"" +
                         std::string(StatusCodeName(expected)) + "\"");
}

StoreOptions OptionsOf(uint8_t a, uint8_t b) {
  StoreOptions options{.compression = static_cast<Compression>(a % 4),
                       .entropy = static_cast<Entropy>(a / 4 % 3),
                       .num_threads = 1 + a / 16 % 2,
                       .max_delta_depth = 1 + a / 32};
  if (b % 2 == 1) options.max_replay_depth = 1 + b / 2 % 24;
  return options;
}

uint8_t NumberOf(uint8_t c) { return static_cast<uint8_t>(c % kNumContents); }

OnExisting OnExistingOf(uint8_t a) {
  constexpr OnExisting kWays[] = {OnExisting::kReplace, OnExisting::kReplace, OnExisting::kFork,
                                  OnExisting::kError};
  return kWays[a / 8 % 4];
}

std::map<std::string, double> MetricsOf(uint8_t c) {
  return {{c % 2 == 0 ? "loss" : "accuracy", c / 2 % 8 / 4.0}};
}

std::optional<uint64_t> ParentOf(uint8_t b) {
  if (b / kNumSteps % 4 != 1) return std::nullopt;
  return b / kNumSteps / 4 % kNumSteps;
}

// Mostly the one of that step. A few saves have none, or that of an earlier step.
std::shared_ptr<const OptimizerStep> HintBy(uint8_t c, uint8_t trained) {
  if (c / 2 % 8 == 0) return nullptr;
  return HintOf(c / 2 % 8 == 1 ? kFirstTrained : trained);
}

// The steps of the run whose bits are set in b and c. Sometimes also one that is not there.
std::vector<CheckpointId> Chosen(const Model& model, const Call& call) {
  std::vector<CheckpointId> ids;
  const unsigned bits = call.b | unsigned{call.c} << 8;
  for (const CheckpointId& id : model.StepsOf(std::string(RunOf(call.a)))) {
    if ((bits >> id.step & 1) != 0) ids.push_back(id);
  }
  if (call.c / 16 == 15) ids.push_back({std::string(RunOf(call.a)), kNumSteps});
  return ids;
}

// A drop, which must free what its forecast says: the chunks that nothing else needs any more.
Status DropAsForecast(Store* store, const std::vector<CheckpointId>& ids, bool reclaim) {
  const Result<uint64_t> forecast = store->BytesFreedByDrop(ids);
  VARVE_ASSIGN_OR_RETURN(const StoreStats before, store->Stats());
  const Status dropped = store->Drop(ids, {.reclaim = reclaim}).status();
  if (!dropped.ok()) return dropped;
  VARVE_RETURN_IF_ERROR(forecast.status());
  VARVE_ASSIGN_OR_RETURN(const StoreStats after, store->Stats());
  const uint64_t freed = before.stored_bytes - after.stored_bytes;
  if (freed == *forecast) return Status::Ok();
  return Status::Aborted("a drop freed " + std::to_string(freed) + " bytes, and its forecast was " +
                         std::to_string(*forecast));
}

class Player {
 public:
  Player(const fs::path& folder, Mistake mistake) : mistake_(mistake) {
    a_.path = folder / "a";
    b_.path = folder / "b";
  }

  Status Start() {
    for (Side* side : {&a_, &b_}) {
      VARVE_ASSIGN_OR_RETURN(side->store, Store::Create(side->path, {.store = {.num_threads = 1}}));
    }
    return Status::Ok();
  }

  Status Do(const Call& call) {
    VARVE_RETURN_IF_ERROR(Dispatch(call));
    for (Side* side : {&a_, &b_}) VARVE_RETURN_IF_ERROR(Compare(*side));
    return Status::Ok();
  }

  // A full check, and no trace of anything once all steps are dropped.
  Status Finish() {
    for (Side* side : {&a_, &b_}) {
      VARVE_RETURN_IF_ERROR(Reopen(side, {}));
      VARVE_RETURN_IF_ERROR(Compare(*side));
      VARVE_RETURN_IF_ERROR(Check(*side->store, true));
      VARVE_RETURN_IF_ERROR(Empty(side));
    }
    return Status::Ok();
  }

 private:
  Status Dispatch(const Call& call);
  Status DoSave(const Call& call);
  Status DoSaveTrained(const Call& call);
  Status Save(const CheckpointId& id, const Model::NewStep& step, SaveOptions options);
  uint8_t NextOf(const std::string& run, std::optional<uint64_t> parent, uint8_t way) const;
  Result<std::unique_ptr<CheckpointWriter>> BeginTrained(uint8_t way);
  Status DoAbandon(const Call& call);
  Status DoFork(const Call& call);
  Status DoDrop(const std::vector<CheckpointId>& ids, bool reclaim);
  Status DoForget(const Call& call);
  Status DoCopy(const Call& call);
  Status DoSubmit(const Call& call, bool has_writer);
  Status DoBackUp();
  Status DoTakeBackup();
  Status DoCrash(const Call& call);
  Status DoReadBeside();

  static Status Reopen(Side* side, const StoreOptions& options) {
    side->store.reset();
    VARVE_ASSIGN_OR_RETURN(side->store, Store::Open(side->path, options));
    return Status::Ok();
  }
  // What a crash left, or a backup, takes the store's place.
  static Status GoOnFrom(const fs::path& other, Side* side) {
    side->reader.reset();
    side->store.reset();
    std::error_code error;
    fs::remove_all(side->path, error);
    fs::rename(other, side->path, error);
    if (error) return Status::IOError(other.string() + ": " + error.message());
    return Reopen(side, {});
  }
  static Status Compare(const Side& side);
  static Status CompareStore(const Store& store, const Model& model);
  static Status Check(const Store& store, bool read_data);
  static Status Empty(Side* side);

  const Mistake mistake_;
  Side a_, b_;
  Side* here_ = &a_;
  Side* there_ = &b_;
};

Status Player::CompareStore(const Store& store, const Model& model) {
  const std::string difference = FirstDifference(Ask(store), model.Ask());
  if (!difference.empty()) return Status::Aborted(difference);
  for (const CheckpointId& id : model.All()) {
    const std::string name = id.run + "@" + std::to_string(id.step);
    const auto reader = store.OpenCheckpoint(id.run, id.step);
    if (!reader.ok()) return reader.status().WithContext(name);
    const Status status = CompareContent(model.ContentOf(id), **reader);
    if (!status.ok()) return status.WithContext(name);
  }
  return Status::Ok();
}

Status Player::Compare(const Side& side) {
  const std::string name = side.path.filename();
  const Status status = CompareStore(*side.store, side.model);
  if (!status.ok()) return status.WithContext("store " + name);
  if (side.reader == nullptr) return Status::Ok();
  VARVE_RETURN_IF_ERROR(side.reader->CatchUp());
  return CompareStore(*side.reader, side.model).WithContext("reader beside " + name);
}

Status Player::Check(const Store& store, bool read_data) {
  VARVE_ASSIGN_OR_RETURN(const CheckReport report, store.Check({.read_data = read_data}));
  return report.ok() ? Status::Ok() : Status::Corruption("check: " + report.errors[0]);
}

Status Player::Empty(Side* side) {
  for (const CheckpointId& id : side->model.All()) {
    VARVE_RETURN_IF_ERROR(DropAsForecast(side->store.get(), {id}, true));
  }
  VARVE_RETURN_IF_ERROR(side->store->Reclaim({.all = true}).status());
  const auto* const impl = static_cast<const StoreImpl*>(side->store.get());
  for (int i = 0; i < kNumFamilies; ++i) {
    const auto family = static_cast<Family>(i);
    if (family == Family::kMeta) continue;  // it has the runs
    VARVE_RETURN_IF_ERROR(impl->database()->Scan(family, "", [&](auto, auto) {
      return Status::Aborted("a key is left in family " + std::string(kFamilyNames[i]));
    }));
  }
  return Status::Ok();
}

Status Player::DoSave(const Call& call) {
  const CheckpointId id{std::string(RunOf(call.a)), StepOf(call.b)};
  Model::NewStep step{.on_existing = OnExistingOf(call.a), .content = NumberOf(call.c)};
  step.parent = ParentOf(call.b);
  const auto extra = static_cast<uint8_t>(call.c / kNumContents);
  if (extra % 2 == 1) step.metrics = MetricsOf(call.b);
  if (extra / 2 == 1) step.tags = {std::string(TagOf(call.b))};
  return Save(id, step,
              {.verify_sharing = call.a / 32 % 4 == 0, .low_priority = call.a / 32 % 4 == 1});
}

// The step that follows the parent, or else the newest one.
uint8_t Player::NextOf(const std::string& run, std::optional<uint64_t> parent, uint8_t way) const {
  const std::vector<CheckpointId> steps = here_->model.StepsOf(run);
  std::optional<CheckpointId> before;
  if (parent.has_value()) before = {run, *parent};
  if (!parent.has_value() && !steps.empty()) before = steps.back();
  const bool is_there = before.has_value() && here_->model.Has(*before);
  return NextTrained(is_there ? here_->model.ContentOf(*before) : 0, way);
}

Status Player::DoSaveTrained(const Call& call) {
  CheckpointId id{std::string(RunOf(call.a)), StepOf(call.b)};
  Model::NewStep step{.on_existing = OnExistingOf(call.a), .parent = ParentOf(call.b)};
  const std::vector<CheckpointId> steps = here_->model.StepsOf(id.run);
  const bool is_behind = call.b / kNumSteps % 4 != 2;
  if (is_behind && !steps.empty() && steps.back().step + 1 < kNumSteps) {
    id.step = steps.back().step + 1;
  }
  step.content = NextOf(id.run, step.parent, call.c);
  return Save(id, step,
              {.verify_sharing = call.a / 32 % 4 == 0,
               .low_priority = call.a / 32 % 4 == 1,
               .optimizer_step = HintBy(call.c, step.content),
               .from_keyframes = call.c / 16 == 0});
}

Status Player::Save(const CheckpointId& id, const Model::NewStep& step, SaveOptions options) {
  options.run = id.run;
  options.on_existing = step.on_existing;
  options.parent = step.parent;
  const auto save = [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto writer, here_->store->Begin(id.step, options));
    VARVE_RETURN_IF_ERROR(PutContent(step.content, writer.get()));
    for (const auto& [name, value] : step.metrics) {
      VARVE_RETURN_IF_ERROR(writer->SetMetric(name, value));
    }
    for (const std::string& tag : step.tags) VARVE_RETURN_IF_ERROR(writer->AddTag(tag));
    return writer->Commit().status();
  };
  return Expect("save", here_->model.Save(id, step), save());
}

// A save that the caller does not end.
Result<std::unique_ptr<CheckpointWriter>> Player::BeginTrained(uint8_t way) {
  const uint8_t content = NextOf("main", std::nullopt, way);
  VARVE_ASSIGN_OR_RETURN(auto writer,
                         here_->store->Begin(kNumSteps, {.optimizer_step = HintOf(content)}));
  VARVE_RETURN_IF_ERROR(PutContent(content, writer.get()));
  return writer;
}

Status Player::DoAbandon(const Call& call) {
  VARVE_ASSIGN_OR_RETURN(const auto writer,
                         here_->store->Begin(kNumSteps, {.run = std::string(RunOf(call.a))}));
  return PutContent(NumberOf(call.c), writer.get());
}

Status Player::DoFork(const Call& call) {
  std::optional<uint64_t> at;
  if (call.c % 2 == 0) at = StepOf(call.c / 2);
  const std::string run(RunOf(call.a)), new_run(RunOf(call.b));
  return Expect("fork", here_->model.Fork(run, new_run, at),
                here_->store->Fork(run, new_run, at).status());
}

Status Player::DoDrop(const std::vector<CheckpointId>& ids, bool reclaim) {
  const Status dropped = DropAsForecast(here_->store.get(), ids, reclaim);
  if (mistake_ == Mistake::kModelForgetsDrops) return Status::Ok();
  return Expect("drop", here_->model.Drop(ids), dropped);
}

// As the verb does: the policy decides, and what it does not keep is dropped.
Status Player::DoForget(const Call& call) {
  const std::string run(RunOf(call.a));
  const RetentionPolicy policy{.keep_last = 1u + call.b % 4, .keep_every = call.c % 6u};
  const auto steps = here_->store->ListCheckpoints(run);
  if (!steps.ok() || steps->empty()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const auto decisions, DecideRetention(policy, *steps));
  const std::vector<CheckpointId> dropped = DroppedBy(decisions);
  if (dropped != here_->model.ForgottenBy(run, policy.keep_last, policy.keep_every)) {
    return Status::Aborted("the policy does not keep what it should");
  }
  return DoDrop(dropped, call.a / 8 % 2 == 0);
}

Status Player::DoCopy(const Call& call) {
  const std::vector<CheckpointId> ids = Chosen(there_->model, call);
  const OnExisting on_existing = OnExistingOf(call.a);
  const Status copied =
      there_->store->CopyTo(here_->store.get(), ids, {.on_existing = on_existing}).status();
  return Expect("copy", there_->model.CopyTo(&here_->model, ids, on_existing), copied);
}

// A writer does not tell what became of a request that nobody waits for.
Status Player::DoSubmit(const Call& call, bool has_writer) {
  const CheckpointId id{std::string(RunOf(call.a)), StepOf(call.b)};
  const std::string tag(TagOf(call.c / 4));
  Request request;
  StatusCode expected;
  switch (call.c % 4) {
    case 0:
      request = SetTagRequest{id, tag};
      expected = here_->model.SetTag(id, tag);
      break;
    case 1:
      request = RemoveTagRequest{id.run, tag};
      expected = here_->model.RemoveTag(id.run, tag);
      break;
    case 2:
      request = SetMetricsRequest{id, MetricsOf(call.c)};
      expected = here_->model.SetMetrics(id, MetricsOf(call.c));
      break;
    default:
      request = DropRequest{{id}, call.c / 8 % 2 == 0};
      expected = here_->model.Drop(std::span(&id, 1));
  }
  if (!has_writer) {
    here_->store.reset();
    VARVE_RETURN_IF_ERROR(Expect("request", expected, Submit(here_->path, request).status()));
    return Reopen(here_, {});
  }
  VARVE_RETURN_IF_ERROR(Submit(here_->path, request, {.wait = false}).status());
  return static_cast<StoreImpl*>(here_->store.get())->ApplyInbox();
}

Status Player::DoBackUp() {
  VARVE_RETURN_IF_ERROR(BackUp(here_->path, here_->BackupPath()).status());
  here_->backup = here_->model;
  VARVE_ASSIGN_OR_RETURN(const auto copy, Store::OpenForReading(here_->BackupPath()));
  return CompareStore(*copy, here_->model).WithContext("the backup");
}

Status Player::DoTakeBackup() {
  if (!here_->backup.has_value()) return Status::Ok();
  here_->model = *std::exchange(here_->backup, std::nullopt);
  return GoOnFrom(here_->BackupPath(), here_);
}

Status Player::DoCrash(const Call& call) {
  std::unique_ptr<CheckpointWriter> writer;
  if (call.a % 4 == 3) {
    VARVE_ASSIGN_OR_RETURN(writer, BeginTrained(call.c));
  } else if (call.a % 4 == 1) {
    VARVE_ASSIGN_OR_RETURN(writer, here_->store->Begin(kNumSteps, {}));
    VARVE_RETURN_IF_ERROR(PutContent(NumberOf(call.c), writer.get()));
  }
  VARVE_RETURN_IF_ERROR(CopyAtOneMoment(here_->path, here_->CrashPath()));
  writer.reset();
  return GoOnFrom(here_->CrashPath(), here_);
}

Status Player::DoReadBeside() {
  if (here_->reader != nullptr) {
    here_->reader.reset();
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(here_->reader, Store::OpenForReading(here_->path));
  return Status::Ok();
}

Status Player::Dispatch(const Call& call) {
  const CheckpointId id{std::string(RunOf(call.a)), StepOf(call.b)};
  switch (call.kind) {
    case CallKind::kSave:
      return DoSave(call);
    case CallKind::kSaveTrained:
      return DoSaveTrained(call);
    case CallKind::kAbandon:
      return DoAbandon(call);
    case CallKind::kSetTag: {
      const std::string tag(TagOf(call.c));
      const StatusCode expected = here_->model.SetTag(id, tag);
      if (mistake_ == Mistake::kStoreSkipsTags) return Status::Ok();
      return Expect("tag", expected, here_->store->SetTag(id, tag));
    }
    case CallKind::kRemoveTag: {
      const std::string tag(TagOf(call.c));
      return Expect("untag", here_->model.RemoveTag(id.run, tag),
                    here_->store->RemoveTag(id.run, tag));
    }
    case CallKind::kSetMetrics:
      return Expect("metrics", here_->model.SetMetrics(id, MetricsOf(call.c)),
                    here_->store->SetMetrics(id, MetricsOf(call.c)));
    case CallKind::kFork:
      return DoFork(call);
    case CallKind::kRewind:
      return Expect("rewind", here_->model.Rewind(id.run, id.step),
                    here_->store->Rewind(id.run, id.step).status());
    case CallKind::kDrop:
      return DoDrop(Chosen(here_->model, call), call.a / 8 % 2 == 0);
    case CallKind::kForget:
      return DoForget(call);
    case CallKind::kReclaim:
      return here_->store->Reclaim({.all = call.a % 2 == 0}).status();
    case CallKind::kCopy:
      return DoCopy(call);
    case CallKind::kSubmit:
      return DoSubmit(call, true);
    case CallKind::kSubmitAlone:
      return DoSubmit(call, false);
    case CallKind::kBackUp:
      return DoBackUp();
    case CallKind::kTakeBackup:
      return DoTakeBackup();
    case CallKind::kReopen:
      return Reopen(here_, OptionsOf(call.a, call.b));
    case CallKind::kReadBeside:
      return DoReadBeside();
    case CallKind::kCrash:
      return DoCrash(call);
    case CallKind::kCheck:
      return Check(*here_->store, call.a % 2 == 0);
    case CallKind::kSwap:
      std::swap(here_, there_);
      return Status::Ok();
  }
  return Status::Ok();
}

Status PlayAll(Player* player, std::span<const Call> calls) {
  VARVE_RETURN_IF_ERROR(player->Start());
  for (size_t i = 0; i < calls.size(); ++i) {
    const Status status = player->Do(calls[i]);
    if (!status.ok()) return status.WithContext("after call " + std::to_string(i));
  }
  return player->Finish().WithContext("at the end");
}

}  // namespace

std::string Play(const fs::path& folder, std::span<const Call> calls, Mistake mistake) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  fs::create_directories(folder, ignored);
  const Status status = [&] {
    Player player(folder, mistake);
    return PlayAll(&player, calls);
  }();
  fs::remove_all(folder, ignored);
  return status.ok() ? "" : status.ToString();
}

}  // namespace varve::internal::testing
