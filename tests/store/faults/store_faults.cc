// SPDX-License-Identifier: Apache-2.0
#include "tests/store/faults/store_faults.h"

#include <algorithm>

#include "tests/store/model/copy_folder.h"

namespace varve::internal::testing {

namespace fs = std::filesystem;

void FaultsTest::MakeTemplate(const std::function<void()>& more) {
  Reset({.digest_seed = 1, .store = closing_options_});
  before_ = {};
  before_.exists = true;
  for (const uint64_t step : {1, 2, 3}) {
    VARVE_ASSERT_OK(SaveStep(step, step));
    before_.Put({"main", step}, ContentOfStep(step));
  }
  VARVE_ASSERT_OK(store_->SetTag({"main", 1}, "first"));
  VARVE_ASSERT_OK(store_->SetMetrics({"main", 1}, {{"loss", 0.5}}));
  before_.tags[{"main", "first"}] = 1;
  before_.metrics[{"main", 1}]["loss"] = 0.5;
  more();
  store_.reset();
  fs::remove(path() / "RESERVE");  // it would only be copied
  fs::rename(path(), template_path());
}

void FaultsTest::ReplaceTemplate(const fs::path& by) {
  fs::remove_all(template_path());
  fs::rename(by, template_path());
}

void FaultsTest::RemoveRound() {
  store_.reset();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path())) {
    if (entry.path() != template_path()) fs::remove_all(entry.path());
  }
}

void FaultsTest::CopyTemplate() {
  RemoveRound();
  fs::copy(template_path(), path(), fs::copy_options::recursive);
}

void FaultsTest::StartFromTemplate() {
  CopyTemplate();
  Reopen(closing_options_);
}

std::string FaultsTest::OpenIfClosed() {
  if (store_ != nullptr) return "";
  auto opened = Store::Open(path(), closing_options_);
  if (!opened.ok()) return "opening: " + opened.status().ToString();
  store_ = *std::move(opened);
  return "";
}

// An operation that was carried out and said an error finds its change there.
std::string FaultsTest::Retry(const Operation& operation, const Status& status) {
  Status again = status;
  // Work in the background may have met the fault and say so only now.
  for (int i = 0; i < 2 && !again.ok(); ++i) {
    again = operation();
    if (again.code() == StatusCode::kAlreadyExists || again.code() == StatusCode::kNotFound) break;
    if (!again.ok() && i == 1) return "the operation again: " + again.ToString();
  }
  return OpenIfClosed();
}

// The store is written to, closed, opened and reclaimed.
std::string FaultsTest::JudgeUse(State state) {
  if (const Status saved = SaveStep(100, 9); !saved.ok()) {
    return "a save after it: " + saved.ToString();
  }
  state.Put({"main", 100}, ContentOfStep(9));
  store_.reset();
  std::string fault = OpenIfClosed();
  if (fault.empty()) fault = CheckState(*store_, {state});
  if (fault.empty()) fault = CheckClean(*store_);
  if (!fault.empty()) return "opened again: " + fault;
  const auto reclaimed = store_->Reclaim({.all = true});
  if (!reclaimed.ok()) return "a reclaim after it: " + reclaimed.status().ToString();
  if (reclaimed->pending_bytes != 0) return "a reclaim after it leaves bytes";
  fault = CheckState(*store_, {state});
  if (fault.empty()) fault = CheckClean(*store_);
  if (!fault.empty()) return "reclaimed: " + fault;
  return fs::is_empty(path() / "incoming") ? "" : "incoming is not empty";
}

// What a process that dies now leaves. A retry, a save or the closing of the store could mend it.
std::string FaultsTest::JudgeDisk(const std::vector<State>& allowed) {
  const fs::path copy = folder_.path() / "died";
  const bool may_lack =
      std::ranges::any_of(allowed, [](const State& state) { return !state.exists; });
  if (may_lack && !fs::exists(path())) return "";
  if (const Status copied = CopyAtOneMoment(path(), copy); !copied.ok()) return copied.ToString();
  std::string fault;
  {
    const auto reader = Store::OpenForReading(copy);
    if (reader.ok()) fault = CheckState(**reader, allowed);
    if (!reader.ok() && !may_lack) fault = reader.status().ToString();
    if (!fault.empty()) return "reading a copy: " + fault;
  }
  {
    const auto store = may_lack ? Store::OpenOrCreate(copy, {.store = closing_options_})
                                : Store::Open(copy, closing_options_);
    if (!store.ok()) return "opening a copy: " + store.status().ToString();
    ApplyRequests(store->get());
    if (!may_lack) fault = CheckState(**store, allowed);
    if (fault.empty()) fault = CheckClean(**store);
  }
  fs::remove_all(copy);
  return fault.empty() ? "" : "a copy: " + fault;
}

std::string FaultsTest::JudgeOperation(const Operation& operation, const Status& status,
                                       const State& before, const State& after) {
  const std::vector<State> allowed = status.ok() ? std::vector{after} : std::vector{before, after};
  std::string fault = JudgeDisk(allowed);
  if (fault.empty() && (before.exists || status.ok())) {
    fault = OpenIfClosed();
    if (fault.empty()) {
      ApplyRequests(store_.get());
      fault = CheckState(*store_, allowed);
    }
  }
  if (fault.empty()) fault = Retry(operation, status);
  if (fault.empty()) fault = CheckState(*store_, {after});
  if (fault.empty()) fault = CheckClean(*store_);
  return fault.empty() ? JudgeUse(after) : fault;
}

Scenario FaultsTest::OfStore(Operation operation, const Change& change) {
  State after = before_;
  change(&after);
  return {[this] { StartFromTemplate(); }, operation,
          [this, operation, after](const Status& status) {
            return JudgeOperation(operation, status, before_, after);
          }};
}

}  // namespace varve::internal::testing
