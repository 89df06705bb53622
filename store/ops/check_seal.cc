// SPDX-License-Identifier: Apache-2.0
#include "store/ops/check_seal.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <string_view>
#include <thread>

#include "base/util.h"
#include "store/db/manifest_tables.h"
#include "store/db/sealed_manifest.h"
#include "store/db/store_impl.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

// A writer may replace a manifest or remove a table while it is looked at.
constexpr int kMaxAttempts = 20;
constexpr auto kBetweenAttempts = std::chrono::milliseconds(20);

// Reads the manifest while a writer may be at work, who writes the seal first and then the
// manifest.
Result<SealedState> AwaitSealedState(const fs::path& store, const Sealer& sealer) {
  Result<SealedState> state = ReadSealedState(store, sealer);
  const auto may_pass = [&] {
    return !state.ok() && state.status().code() != StatusCode::kFailedPrecondition;
  };
  for (int attempt = 1; attempt < kMaxAttempts && may_pass(); ++attempt) {
    std::this_thread::sleep_for(kBetweenAttempts);
    state = ReadSealedState(store, sealer);
  }
  return state;
}

class TagChecker {
 public:
  TagChecker(const fs::path& store, const Sealer& sealer) : db_(store / "db"), sealer_(sealer) {}

  // True: every table of the manifest was there.
  Result<bool> Check(std::string_view log, const fs::path& manifest) {
    const auto state = DecodeManifest(log);
    if (!state.has_value()) return UnknownRecord(manifest);
    missing_.clear();
    facts_.num_files = 0;
    for (const auto& [number, table] : state->tables) {
      const std::string name = TableFileName(number);
      if (!seen_.contains(name)) VARVE_RETURN_IF_ERROR(CheckOne(name, table.tag));
      if (sound_.contains(name)) ++facts_.num_files;
    }
    return missing_.empty();
  }

  SealFacts TakeFacts() {
    for (const std::string& name : missing_) {
      facts_.errors.push_back("table file " + (db_ / name).string() + " is missing");
    }
    return std::move(facts_);
  }

 private:
  Status CheckOne(const std::string& name, std::string_view tag) {
    const Status status = sealer_.CompareTable(db_ / name, tag);
    if (status.code() == StatusCode::kAborted) return status;
    if (status.code() == StatusCode::kNotFound) {
      missing_.push_back(name);
      return Status::Ok();
    }
    seen_.insert(name);
    if (status.ok()) {
      sound_.insert(name);
    } else {
      facts_.errors.push_back(status.message());
    }
    return Status::Ok();
  }

  const fs::path db_;
  const Sealer& sealer_;
  std::set<std::string> seen_, sound_;  // table files never change
  std::vector<std::string> missing_;    // in the last state
  SealFacts facts_;
};

// `read` returns the manifest.
Result<SealFacts> Verify(const fs::path& store, const Sealer& sealer,
                         const std::function<Result<SealedState>()>& read) {
  TagChecker checker(store, sealer);
  SealedState state;
  for (int attempt = 1;; ++attempt) {
    VARVE_ASSIGN_OR_RETURN(state, read());
    VARVE_ASSIGN_OR_RETURN(const bool is_whole, checker.Check(state.log, state.manifest));
    if (is_whole || attempt == kMaxAttempts) break;
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  SealFacts facts = checker.TakeFacts();
  facts.state = std::move(state);
  VARVE_ASSIGN_OR_RETURN(const auto logs, FindForeignLogs(store));
  facts.errors.insert(facts.errors.end(), logs.begin(), logs.end());
  return facts;
}

}  // namespace

Status CheckSeal(const StoreImpl& store, CheckReport* report) {
  report->is_sealed = store.format().is_sealed();
  if (store.sealer() == nullptr) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const SealFacts facts, VerifySeal(store.path(), *store.sealer()));
  report->num_sealed_files = facts.num_files;
  report->errors.insert(report->errors.end(), facts.errors.begin(), facts.errors.end());
  return Status::Ok();
}

Result<SealFacts> VerifySeal(const fs::path& store, const Sealer& sealer) {
  Result<SealFacts> facts = Verify(store, sealer, [&] { return AwaitSealedState(store, sealer); });
  if (facts.status().code() != StatusCode::kCorruption) return facts;
  return SealFacts{.num_files = 0, .errors = {facts.status().message()}, .state = {}};
}

Result<SealFacts> VerifyTags(const fs::path& store, const Sealer& sealer) {
  return Verify(store, sealer, [&] { return ReadUnsealedState(store); });
}

}  // namespace varve::internal
