// SPDX-License-Identifier: Apache-2.0
//
// Changing a store from another process, whether or not a writer is at work in it.
//
//   const auto report = varve::Submit("ckpt", varve::SetTagRequest{{"main", 100}, "release"});
//   if (!report.ok()) return report.status();
//
// A request is a small file in the store's inbox, made there in one atomic step. A live writer
// applies it within seconds and leaves an answer. When no writer is there, the caller opens the
// store itself, applies what waits, and then its own, without a file. That needs no byte of a full
// disk. Requests are applied in the order of their times. Thread rule: any thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/result.h"
#include "varve/store.h"

namespace varve {

struct SetTagRequest {
  CheckpointId id;
  std::string tag;
};
struct RemoveTagRequest {
  std::string run;
  std::string tag;
};
struct SetMetricsRequest {
  CheckpointId id;
  std::map<std::string, double> metrics;
};
struct DropRequest {
  std::vector<CheckpointId> ids;
  bool reclaim = true;
};
using Request = std::variant<SetTagRequest, RemoveTagRequest, SetMetricsRequest, DropRequest>;

struct SubmitOptions {
  // False: returns as soon as the request is in the inbox of a live writer. The caller then does
  // not learn whether it could be applied.
  bool wait = true;
  // How long to wait for a live writer's answer.
  std::chrono::milliseconds timeout{60000};
};

enum class AppliedBy {
  kCaller,  // no writer was there
  kWriter,  // a live one
  kNobody,  // handed to a live writer, not waited for
};

struct SubmitReport {
  AppliedBy applied_by = AppliedBy::kNobody;
  DropReport drop;  // of a DropRequest that was applied
};

// Applies `request` to the store in `path` and returns when it is durable. The error is the one
// that Store's own function gives. kAborted: a live writer did not answer in time, and may still
// apply the request. kNotFound: also when there is no store.
Result<SubmitReport> Submit(const std::filesystem::path& path, const Request& request,
                            const SubmitOptions& options = {});

}  // namespace varve
