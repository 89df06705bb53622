// SPDX-License-Identifier: Apache-2.0
//
// Changing a store from another process, whether or not a writer is at work in it.
//
//   const auto report = varve::Submit("ckpt", varve::SetTagRequest{{"main", 100}, "release"});
//   if (!report.ok()) return report.status();
//
// A request is a small file in the store's inbox, made there in one atomic step. A writer that has
// the store open applies it within seconds and leaves an answer. When there is no writer, Submit
// opens the store itself. It applies all waiting requests, and then its own. Without a writer,
// Submit makes no file for its own request, so a drop works even on a full disk. Requests are
// applied in the order in which they were made. The root of a group has no inbox. There Submit
// always applies the request itself.
//
// Thread rule: the function may be called from any thread.
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

// SetTagRequest does what Store::SetTag does, and so on.
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
  // False: Submit returns as soon as the request is in the inbox of a writer. The caller then does
  // not learn whether the request was applied.
  bool wait = true;
  // How long to wait for a live writer's answer.
  std::chrono::milliseconds timeout{60000};
  // The key of a sealed store. Without it Submit returns kFailedPrecondition, even when a writer is
  // at work.
  std::string key{};
};

enum class AppliedBy {
  kCaller,  // Submit itself, because there was no writer
  kWriter,  // the process that has the store open for writing
  kNobody,  // the request is in the inbox, and Submit did not wait for an answer
};

struct SubmitReport {
  AppliedBy applied_by = AppliedBy::kNobody;
  DropReport drop;  // set for a DropRequest that was applied
};

// Applies `request` to the store in `path`. Returns when the change is durable, unless there is a
// writer and `wait` is false. Errors are those of Store::Open and of the function that `request`
// asks for. Besides those, kAborted has three cases:
//
//   - The writer did not answer in time. It may still apply the request.
//   - The writer took the request and left no answer, for example on a full disk. It may have
//     applied the request.
//   - The writer ended while Submit waited. Submit then opened the store itself, and could not
//     apply all requests in the inbox. The next writer may still apply this one.
Result<SubmitReport> Submit(const std::filesystem::path& path, const Request& request,
                            const SubmitOptions& options = {});

}  // namespace varve
