// SPDX-License-Identifier: Apache-2.0
//
// Makes each answer on a thread of its own. Who asks waits a moment. If the answer takes longer,
// who asked gets a number, and asks for the answer with it.
//
//   HttpResponse response = answers.Start(make);  // the answer, or 202 with {"job": 3}
//   response = answers.Await(3);                  // the same
//
// Thread rule: any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>

#include "cli/view/http_server.h"

namespace varve::internal::cli {

class SlowAnswers {
 public:
  using Make = std::function<HttpResponse()>;

  // Start and Await wait for at most `patience`.
  explicit SlowAnswers(std::chrono::milliseconds patience) : patience_(patience) {}
  // Waits for all that is being made.
  ~SlowAnswers() = default;

  // 503: too many answers are being made already. Where no thread can be started, who asks waits
  // until the answer is made.
  HttpResponse Start(const Make& make);
  // 410: nobody makes this answer, or somebody has got it, or nobody has asked for it in time.
  HttpResponse Await(uint64_t job);

 private:
  struct Made {
    HttpResponse response;
    std::chrono::steady_clock::time_point finished;
  };
  struct Job {
    std::chrono::steady_clock::time_point started;
    std::shared_future<Made> made;
  };

  void ForgetOld();
  HttpResponse Wait(uint64_t number, const Job& job);

  const std::chrono::milliseconds patience_;
  std::mutex mutex_;  // guards what follows
  uint64_t last_number_ = 0;
  std::map<uint64_t, Job> jobs_;  // by number
};

}  // namespace varve::internal::cli
