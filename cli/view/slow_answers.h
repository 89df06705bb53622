// SPDX-License-Identifier: Apache-2.0
//
// Makes each answer on a thread of its own. Who asks waits a moment. If the answer takes longer,
// who asked gets a number, and asks for the answer with it.
//
//   HttpResponse response = answers.Start(make);  // the answer, or 202 with {"job": 3}
//   response = answers.Await(3);                  // the same
//   answers.GiveUp(3);                            // nobody will ask for it again
//
// Thread rule: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>

#include "cli/view/http_server.h"

namespace varve::internal::cli {

class SlowAnswers {
 public:
  // It ends early when the flag is set.
  using Make = std::function<HttpResponse(const std::atomic<bool>* stop)>;

  // Start and Await wait for at most `patience`.
  explicit SlowAnswers(std::chrono::milliseconds patience) : patience_(patience) {}
  // Waits for all that is being made.
  ~SlowAnswers() = default;

  // 503: too many answers are being made already. Where no thread can be started, who asks waits
  // until the answer is made.
  HttpResponse Start(const Make& make);
  // 410: nobody makes this answer, or somebody has got it, or nobody has asked for it in time.
  HttpResponse Await(uint64_t job);
  // Sets the flag of an answer that is being made. 410: as Await.
  HttpResponse GiveUp(uint64_t job);
  // Sets the flags of all answers, also of those that are asked for later.
  void Stop();

 private:
  using Flag = std::shared_ptr<std::atomic<bool>>;
  struct Made {
    HttpResponse response;
    std::chrono::steady_clock::time_point finished;
  };
  struct Job {
    std::chrono::steady_clock::time_point started;
    Flag stop;
    bool is_given_up = false;
    std::shared_future<Made> made;
  };

  void ForgetOld();
  HttpResponse Wait(uint64_t number, const Job& job);

  const std::chrono::milliseconds patience_;
  std::mutex mutex_;  // guards what follows
  bool is_stopped_ = false;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Job> jobs_;  // by number
};

}  // namespace varve::internal::cli
