// SPDX-License-Identifier: Apache-2.0
//
// Answers the requests of the page about one store. A writer may have the store open meanwhile.
//
// Thread rule: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cli/view/answers.h"
#include "cli/view/http_server.h"
#include "cli/view/slow_answers.h"
#include "cli/view/store_pool.h"
#include "varve/result.h"
#include "varve/store.h"

namespace varve::internal::cli {

class Inspector {
 public:
  using Open = std::function<Result<std::unique_ptr<Store>>(std::optional<uint64_t> snapshot)>;

  // `open` opens the store of `path` for reading. It is called again while long answers hold the
  // stores that it has opened. For a URL it is called for each new snapshot, and opens that one.
  static Result<std::unique_ptr<Inspector>> Make(std::string path, Open open);

  // `path` is "", the name of a file of the page, or "api/..." (docs/view.md). An answer that takes
  // long comes in two steps (cli/view/slow_answers.h).
  HttpResponse Respond(const std::string& path,
                       const std::multimap<std::string, std::string>& parameters);

  // Ends answers that take long. They say that they were stopped.
  void Stop();

  // Starts to make answers about the newest step before somebody asks for them.
  void PrepareNewest();

 private:
  // Views shall answer within 300 ms.
  static constexpr std::chrono::milliseconds kPatience{200};
  struct Opened {
    std::shared_ptr<const Store> store;
    std::string snapshot;  // of a URL, the number of the open one
    std::string warning;   // says why nobody knows whether there is a newer one
  };
  // A check that this process has made.
  struct Checked {
    std::chrono::system_clock::time_point finished;
    double seconds = 0;
    CheckReport report;
  };

  Inspector(std::string path, Open open);

  // Returns a store with all that was committed up to now. For `holds_state` see StorePool::Take.
  Result<Opened> Fresh(bool holds_state);
  Result<Opened> OpenNewest(const Opened& known) const;
  void FollowSnapshots();
  void LookForSnapshot();
  // What people ask next about a step with many tensors is made in the background, and kept.
  void PrepareSoon(const std::string& step);
  Status Prepare(std::string step);
  Status PrepareLarge(const nlohmann::ordered_json& shown);
  HttpResponse AwaitJob(const Query& query);
  Answer AnswerApi(const std::string& path, const Query& query);
  Answer AnswerCheck(const Ask& ask);

  const std::string path_;
  const Open open_;
  StorePool stores_;               // unless the path is a URL
  std::atomic<bool> stop_{false};  // ends what no request waits for
  Caches caches_;

  std::mutex check_mutex_;  // held throughout a check
  std::mutex checked_mutex_;
  std::optional<Checked> checked_;

  std::mutex mutex_;  // guards what follows, which is for URLs
  Opened opened_;
  bool is_looking_ = false;
  std::chrono::steady_clock::time_point looked_;
  std::shared_future<void> look_;  // its end waits for the thread that looks

  std::mutex prepare_mutex_;    // guards what follows
  std::string prepared_step_;   // of the thread that prepares
  std::future<void> prepared_;  // its end waits for that thread

  SlowAnswers answers_{kPatience};  // the last, because its end waits for threads that use the rest
};

}  // namespace varve::internal::cli
