// SPDX-License-Identifier: Apache-2.0
#include "cli/view/inspector.h"

#include <array>
#include <utility>

#include "base/guarded.h"
#include "cli/json.h"
#include "cli/view/page.h"
#include "objects/url.h"
#include "varve/remote.h"
#include "varve/stop.h"

namespace varve::internal::cli {
namespace {

// How often a URL is asked for a newer snapshot. Each question goes over the network.
constexpr std::chrono::seconds kSnapshotInterval{2};
// How long a request waits for what it says.
constexpr std::chrono::seconds kLookPatience{1};

// Answers about fewer tensors take no time.
constexpr uint64_t kManyTensors = 2000;

std::string NameOf(const nlohmann::ordered_json& id) {
  return id["run"].get<std::string>() + "@" + std::to_string(id["step"].get<uint64_t>());
}

// The most stores that are open at a time, so that memory is bounded.
constexpr size_t kMaxStores = 4;

struct Route {
  std::string_view path;
  std::string_view parameters;  // those that there may be (Query::CheckNames)
  Answer (*answer)(const Ask&);
  bool holds_state = false;  // it may read one state of the store for long (StorePool)
};
constexpr bool kHoldsState = true;

constexpr std::array kRoutes = {
    Route{"api/store", "", AnswerStore},
    Route{"api/runs", "", AnswerRuns},
    Route{"api/lineage", "", AnswerLineage},
    Route{"api/steps", "run last sort order offset limit", AnswerSteps},
    Route{"api/curves", "metric points", AnswerCurves},
    Route{"api/near", "step", AnswerNear},
    Route{"api/stats", "", AnswerStats},
    Route{"api/space", "", AnswerSpace},
    Route{"api/sharing", "", AnswerSharing, kHoldsState},
    Route{"api/forget",
          "run keep-last keep-every keep-best* keep-within keep-tag* no-reclaim offset limit",
          AnswerForget, kHoldsState},
    Route{"api/show", "step", AnswerShow},
    Route{"api/tensors", "step glob sort order offset limit", AnswerTensors, kHoldsState},
    Route{"api/tree", "step prefix", AnswerTree},
    Route{"api/ranks", "step offset limit", AnswerRanks},
    Route{"api/shards", "step name offset limit", AnswerShards},
    Route{"api/tensor", "step name shard slice values", AnswerTensor},
    Route{"api/log", "run name order offset limit", AnswerLog, kHoldsState},
    Route{"api/diff", "before after glob name values sort order offset limit", AnswerDiff,
          kHoldsState},
    Route{"api/health", "", AnswerHealth},
};

int HttpStatus(StatusCode code) {
  switch (code) {
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kUnavailable:
    case StatusCode::kAborted:
      return 503;
    default:
      return 500;
  }
}

// A browser reads numbers as doubles. Integers that a double cannot hold become text.
void KeepIntegersExact(nlohmann::ordered_json* value) {
  constexpr int64_t kMax = (int64_t{1} << 53) - 1;
  if (value->is_structured()) {
    for (nlohmann::ordered_json& element : *value) KeepIntegersExact(&element);
  } else if (value->is_number_unsigned()) {
    const auto number = value->get<uint64_t>();
    if (number > kMax) *value = std::to_string(number);
  } else if (value->is_number_integer()) {
    const auto number = value->get<int64_t>();
    if (number < -kMax || number > kMax) *value = std::to_string(number);
  }
}

HttpResponse ToResponse(Answer answer) {
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  HttpResponse response;
  if (answer.ok()) {
    KeepIntegersExact(&*answer);
    response.body = answer->dump(-1, ' ', /*ensure_ascii=*/false, kReplace);
    return response;
  }
  const Status& status = answer.status();
  const nlohmann::ordered_json error = {{"error", status.message()},
                                        {"code", std::string(StatusCodeName(status.code()))}};
  response.status = HttpStatus(status.code());
  response.body = error.dump(-1, ' ', /*ensure_ascii=*/false, kReplace);
  return response;
}

}  // namespace

Inspector::Inspector(std::string path, Open open)
    : path_(std::move(path)),
      open_(std::move(open)),
      stores_(kMaxStores, [this] { return open_(std::nullopt); }) {}

Result<std::unique_ptr<Inspector>> Inspector::Make(std::string path, Open open) {
  std::unique_ptr<Inspector> inspector(new Inspector(std::move(path), std::move(open)));
  if (LooksLikeUrl(inspector->path_)) {
    VARVE_ASSIGN_OR_RETURN(inspector->opened_, inspector->OpenNewest({}));
  } else {
    VARVE_RETURN_IF_ERROR(inspector->stores_.Take(/*holds_state=*/false).status());
  }
  return inspector;
}

HttpResponse Inspector::Respond(const std::string& path,
                                const std::multimap<std::string, std::string>& parameters) {
  const std::string_view name = path.empty() ? "index.html" : std::string_view(path);
  for (const PageFile& file : PageFiles()) {
    if (file.name == name) return {.type = std::string(file.type), .body = std::string(file.bytes)};
  }
  if (path == "api/job") return AwaitJob(Query(parameters));
  if (path == "api/show") PrepareSoon(Query(parameters).Text("step"));
  return answers_.Start([this, path, parameters](const std::atomic<bool>* stop) {
    const StopScope scope(stop);
    return ToResponse(AnswerApi(path, Query(parameters)));
  });
}

HttpResponse Inspector::AwaitJob(const Query& query) {
  const auto number = [&query]() -> Result<uint64_t> {
    VARVE_RETURN_IF_ERROR(query.CheckNames("id giveup"));
    VARVE_RETURN_IF_ERROR(query.Needed("id").status());
    return query.Number("id", 0, UINT64_MAX);
  }();
  if (!number.ok()) return ToResponse(number.status());
  const Result<bool> gives_up = query.Flag("giveup");
  if (!gives_up.ok()) return ToResponse(gives_up.status());
  return *gives_up ? answers_.GiveUp(*number) : answers_.Await(*number);
}

void Inspector::Stop() {
  stop_ = true;
  answers_.Stop();
}

void Inspector::PrepareNewest() { PrepareSoon(""); }

// Without a step it prepares the newest of all runs.
void Inspector::PrepareSoon(const std::string& step) {
  const std::scoped_lock lock(prepare_mutex_);
  const bool is_busy =
      prepared_.valid() && prepared_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (is_busy) return;
  const auto prepare = [this, step] {
    const StopScope scope(&stop_);
    Guarded("preparing answers", [&] { return Prepare(step); }).IgnoreError();
  };
  // Without a thread the answers are made when they are asked for.
  Guarded("starting a thread", [&] {
    prepared_ = std::async(std::launch::async, prepare);
    return Status::Ok();
  }).IgnoreError();
}

// Who asks meanwhile waits for what is being made here, and gets its errors.
Status Inspector::Prepare(std::string step) {
  if (step.empty()) {
    VARVE_ASSIGN_OR_RETURN(const Opened opened, Fresh(/*holds_state=*/false));
    VARVE_ASSIGN_OR_RETURN(const auto steps, ListBySaving(*opened.store));
    if (steps.empty()) return Status::Ok();
    step = NameOf(ToJson(steps.back()));
  }
  VARVE_ASSIGN_OR_RETURN(const auto shown, AnswerApi("api/show", Query({{"step", step}})));
  if (shown["tensors"] < kManyTensors) return Status::Ok();
  const std::string name = NameOf(shown) + " " + shown["created"].get<std::string>();
  if (name == std::exchange(prepared_step_, name)) return Status::Ok();
  return PrepareLarge(shown);
}

Status Inspector::PrepareLarge(const nlohmann::ordered_json& shown) {
  const std::string name = NameOf(shown);
  const Query sizes({{"step", name}, {"sort", "stored"}, {"limit", "0"}});
  VARVE_RETURN_IF_ERROR(AnswerApi("api/tensors", sizes).status());
  if (!shown["parent"].is_null()) {
    const Query two(
        {{"before", NameOf(shown["parent"])}, {"after", name}, {"values", "1"}, {"limit", "0"}});
    VARVE_RETURN_IF_ERROR(AnswerApi("api/diff", two).status());
  }
  VARVE_RETURN_IF_ERROR(AnswerApi("api/ranks", Query({{"step", name}})).status());
  return AnswerApi("api/sharing", Query({})).status();
}

Answer Inspector::AnswerApi(const std::string& path, const Query& query) {
  if (path == "api/check") {
    VARVE_RETURN_IF_ERROR(query.CheckNames("start"));
    VARVE_ASSIGN_OR_RETURN(const bool start, query.Flag("start"));
    VARVE_ASSIGN_OR_RETURN(const Opened opened, Fresh(/*holds_state=*/start));
    return AnswerCheck({*opened.store, path_, opened.snapshot, opened.warning, query, caches_});
  }
  for (const Route& route : kRoutes) {
    if (route.path != path) continue;
    VARVE_RETURN_IF_ERROR(query.CheckNames(route.parameters));
    VARVE_ASSIGN_OR_RETURN(const Opened opened, Fresh(route.holds_state));
    return route.answer({*opened.store, path_, opened.snapshot, opened.warning, query, caches_});
  }
  return Status::NotFound("there is nothing called \"" + path + "\" here");
}

Result<Inspector::Opened> Inspector::Fresh(bool holds_state) {
  Opened opened;
  if (!LooksLikeUrl(path_)) {
    VARVE_ASSIGN_OR_RETURN(opened.store, stores_.Take(holds_state));
    return opened;
  }
  FollowSnapshots();
  const std::scoped_lock lock(mutex_);
  return opened_;
}

// A store at a URL is one snapshot, and does not see later ones.
Result<Inspector::Opened> Inspector::OpenNewest(const Opened& known) const {
  Opened newest;
  std::optional<uint64_t> number;
  VARVE_ASSIGN_OR_RETURN(const std::vector<SnapshotInfo> snapshots, ListSnapshots(path_));
  if (!snapshots.empty()) number = snapshots.back().number;
  if (number) newest.snapshot = std::to_string(*number);
  if (number && newest.snapshot == known.snapshot) {
    newest.store = known.store;
    return newest;
  }
  VARVE_ASSIGN_OR_RETURN(newest.store, open_(number));
  return newest;
}

// One thread looks, for as long as the object store takes. Nobody waits long for it: then answers
// are about the snapshot that is open.
void Inspector::FollowSnapshots() {
  std::shared_future<void> look;
  {
    const std::scoped_lock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (is_looking_ || now - looked_ < kSnapshotInterval) return;
    look = std::async(std::launch::async, [this] { LookForSnapshot(); }).share();
    look_ = look;
    is_looking_ = true;
  }
  look.wait_for(kLookPatience);
}

void Inspector::LookForSnapshot() {
  const StopScope scope(&stop_);
  Opened known;
  {
    const std::scoped_lock lock(mutex_);
    known = opened_;
  }
  auto newest = Guarded("looking for snapshots", [&] { return OpenNewest(known); });
  const std::scoped_lock lock(mutex_);
  is_looking_ = false;
  looked_ = std::chrono::steady_clock::now();
  if (newest.ok()) {
    opened_ = *std::move(newest);
  } else {
    opened_.warning = "no newer snapshot could be looked for: " + newest.status().message();
  }
}

// `start` checks the store now. Without it the answer is about the last check of this process, or
// null.
Answer Inspector::AnswerCheck(const Ask& ask) {
  VARVE_ASSIGN_OR_RETURN(const bool start, ask.query.Flag("start"));
  if (start) {
    const std::unique_lock lock(check_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return Status::Unavailable("a check is running already");
    const auto started = std::chrono::steady_clock::now();
    VARVE_ASSIGN_OR_RETURN(CheckReport report, ask.store.Check());
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
    const std::scoped_lock checked_lock(checked_mutex_);
    checked_ = {std::chrono::system_clock::now(), elapsed.count(), std::move(report)};
  }
  const std::scoped_lock lock(checked_mutex_);
  if (!checked_) return nlohmann::ordered_json();
  return nlohmann::ordered_json{{"finished", IsoTime(checked_->finished)},
                                {"seconds", checked_->seconds},
                                {"report", ToJson(checked_->report)}};
}

}  // namespace varve::internal::cli
