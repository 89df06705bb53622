// SPDX-License-Identifier: Apache-2.0
//
// One call on an object store, for tests that kill it.
//
//   remote_worker push STORE URL [MISTAKE]
//                                      prints "pushed SNAPSHOT" when it has returned
//   remote_worker collect URL KEEP [closes-living] [MISTAKE]
//                                      prints "collecting" before and "collected" after. With
//                                      closes-living pushes that are alive count as dead
//   remote_worker pull URL STORE       prints "pulled SNAPSHOT"
//   remote_worker state URL            prints "snapshot N" for each, "open N" for their number, and
//                                      "leaked BLOB" and "lost BLOB" for what should not be, or be
//
// A mistake is reads-roots-first or makes-no-fence of a collector, ignores-fence or
// ignores-attempts of a push. Exit code 2: the outcome is unknown, or what was pulled has been
// collected meanwhile.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "objects/url.h"
#include "store/remote/pusher.h"
#include "store/remote/reclaim_remote.h"
#include "store/remote/remote_log.h"

#ifdef VARVE_HAS_S3
#include "varve/s3.h"
#endif
#ifdef VARVE_HAS_RADOS
#include "varve/rados.h"
#endif

namespace varve::internal::testing {
namespace {

constexpr int kFailed = 1;
constexpr int kUnknown = 2;

void Report(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int Fail(const Status& status) {
  std::fprintf(stderr, "remote_worker: %s\n", status.ToString().c_str());
  return status.code() == StatusCode::kUnavailable ? kUnknown : kFailed;
}

// Others shall work while a process sleeps where it matters.
void Sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

int RunPush(const std::string& store, const std::string& url, const std::string& mistake) {
  auto objects = OpenObjects(url);
  if (!objects.ok()) return Fail(objects.status());
  Pusher pusher(*std::move(objects), {.ignores_fence = mistake == "ignores-fence",
                                      .ignores_attempts = mistake == "ignores-attempts",
                                      .in_commit = Sleep});
  const auto report = pusher.Push(store, {});
  if (!report.ok()) return Fail(report.status());
  Report("pushed " + std::to_string(report->snapshot));
  return 0;
}

int RunPull(const std::string& url, const std::string& store) {
  const auto report = Pull(url, store, {.read_data = true});
  if (!report.ok()) return Fail(report.status());
  Report("pulled " + std::to_string(report->snapshot));
  return 0;
}

int Collect(const std::string& url, uint64_t keep, const std::vector<std::string>& words) {
  const auto has = [&words](const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  const auto objects = OpenObjects(url);
  if (!objects.ok()) return Fail(objects.status());
  Report("collecting");
  const ReclaimMutation mutation{.reads_roots_first = has("reads-roots-first"),
                                 .makes_no_fence = has("makes-no-fence"),
                                 .after_roots = Sleep};
  RemoteReclaimOptions options{.keep_last = keep};
  if (has("closes-living")) options.wait_for_pushes = std::chrono::milliseconds(1);
  const auto report = Reclaim(objects->get(), options, mutation);
  if (!report.ok() && report.status().code() != StatusCode::kNotFound) {
    return Fail(report.status());
  }
  Report("collected");
  return 0;
}

int State(const std::string& url) {
  const auto objects = OpenObjects(url);
  if (!objects.ok()) return Fail(objects.status());
  const RemoteLog log(objects->get());
  const auto state = log.ReadNewest();
  if (!state.ok()) return Fail(state.status());
  std::set<std::string> needed, found;
  for (const RemoteSnapshot& snapshot : state->snapshots) {
    Report("snapshot " + std::to_string(snapshot.number));
    needed.insert(snapshot.body.blob);
    const auto body = log.ReadBody(snapshot);
    if (!body.ok()) return Fail(body.status());
    for (const BodyTable& table : body->tables) needed.insert(table.where.blob);
  }
  Report("open " + std::to_string(state->open.size()));
  const Status listed = (*objects)->ListBlobs([&](const BlobInfo& blob) {
    found.insert(blob.is_whole ? blob.name : blob.name + " (unfinished)");
    return Status::Ok();
  });
  if (!listed.ok()) return Fail(listed);
  for (const std::string& name : needed) {
    if (!found.contains(name)) Report("lost " + name);
  }
  for (const std::string& name : found) {
    if (!needed.contains(name)) Report("leaked " + name);
  }
  return 0;
}

int Run(const std::vector<std::string>& words) {
#ifdef VARVE_HAS_S3
  UseS3();
#endif
#ifdef VARVE_HAS_RADOS
  UseRados();
#endif
  if (words.size() >= 3 && words[0] == "push") {
    return RunPush(words[1], words[2], words.size() > 3 ? words[3] : "");
  }
  if (words.size() == 3 && words[0] == "pull") return RunPull(words[1], words[2]);
  if (words.size() >= 3 && words[0] == "collect") {
    return Collect(words[1], std::strtoull(words[2].c_str(), nullptr, 10), words);
  }
  if (words.size() == 2 && words[0] == "state") return State(words[1]);
  std::fprintf(stderr, "see the first lines of remote_worker.cc\n");
  return kFailed;
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) { return varve::internal::testing::Run({argv + 1, argv + argc}); }
