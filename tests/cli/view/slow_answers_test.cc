// SPDX-License-Identifier: Apache-2.0
#include "cli/view/slow_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace varve::internal::cli {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kNone{0};
constexpr std::chrono::hours kForever{1};

HttpResponse Hello(const std::atomic<bool>* = nullptr) { return {.status = 200, .body = "hello"}; }

// An answer that is made when the test says so.
class Held {
 public:
  SlowAnswers::Make make() {
    return [end = end_.get_future().share()](const std::atomic<bool>*) {
      end.wait();
      return Hello();
    };
  }
  void Finish() { end_.set_value(); }

 private:
  std::promise<void> end_;
};

uint64_t JobOf(const HttpResponse& response) {
  EXPECT_EQ(response.status, 202);
  return nlohmann::json::parse(response.body)["job"];
}

// Asks until the answer is there.
HttpResponse AwaitWhole(SlowAnswers* answers, uint64_t job) {
  HttpResponse response = answers->Await(job);
  while (response.status == 202) response = answers->Await(job);
  return response;
}

TEST(SlowAnswersTest, AnAnswerInTimeComesAtOnce) {
  SlowAnswers answers(kForever);
  const HttpResponse response = answers.Start(Hello);
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "hello");
}

TEST(SlowAnswersTest, ALateAnswerIsGivenOnceToWhoHasItsNumber) {
  SlowAnswers answers(kNone);
  Held held;
  const uint64_t job = JobOf(answers.Start(held.make()));
  EXPECT_EQ(JobOf(answers.Await(job)), job);
  held.Finish();
  EXPECT_EQ(AwaitWhole(&answers, job).body, "hello");
  EXPECT_EQ(answers.Await(job).status, 410);
  EXPECT_EQ(answers.Await(job + 1).status, 410);
}

TEST(SlowAnswersTest, TwoQuestionsHaveTwoAnswers) {
  SlowAnswers answers(kNone);
  Held one, other;
  const uint64_t first = JobOf(answers.Start(one.make()));
  const uint64_t second = JobOf(answers.Start(other.make()));
  EXPECT_NE(first, second);
  other.Finish();
  EXPECT_EQ(AwaitWhole(&answers, second).body, "hello");
  EXPECT_EQ(answers.Await(first).status, 202);
  one.Finish();
}

TEST(SlowAnswersTest, TooManyAreRefusedUntilOneIsReady) {
  SlowAnswers answers(kNone);
  std::vector<Held> held(32);
  std::vector<uint64_t> jobs;
  for (Held& one : held) jobs.push_back(JobOf(answers.Start(one.make())));
  const HttpResponse refusal = answers.Start(Hello);
  EXPECT_EQ(refusal.status, 503);
  EXPECT_THAT(refusal.body, HasSubstr("ask again later"));
  held[7].Finish();
  EXPECT_EQ(AwaitWhole(&answers, jobs[7]).status, 200);
  Held next;
  JobOf(answers.Start(next.make()));
  next.Finish();
  for (size_t i = 0; i < held.size(); ++i) {
    if (i != 7) held[i].Finish();
  }
}

TEST(SlowAnswersTest, AnExceptionIsAnAnswer) {
  SlowAnswers answers(kForever);
  const auto fail = [](const std::atomic<bool>*) -> HttpResponse { throw std::bad_alloc(); };
  EXPECT_EQ(answers.Start(fail).status, 500);
}

// Makes an answer that ends only when it is told to.
HttpResponse UntilStopped(const std::atomic<bool>* stop) {
  while (!*stop) std::this_thread::yield();
  return {.status = 503};
}

TEST(SlowAnswersTest, WhatIsGivenUpEnds) {
  SlowAnswers answers(kNone);
  const uint64_t job = JobOf(answers.Start(UntilStopped));
  const uint64_t other = JobOf(answers.Start(UntilStopped));
  EXPECT_EQ(answers.GiveUp(job).status, 200);
  EXPECT_EQ(AwaitWhole(&answers, job).status, 503);
  EXPECT_EQ(answers.GiveUp(job).status, 410);
  EXPECT_EQ(answers.Await(other).status, 202);
  EXPECT_EQ(answers.GiveUp(other).status, 200);
}

TEST(SlowAnswersTest, AStopEndsAllAndWhatComesLater) {
  SlowAnswers answers(kNone);
  const uint64_t job = JobOf(answers.Start(UntilStopped));
  answers.Stop();
  EXPECT_EQ(AwaitWhole(&answers, job).status, 503);
  HttpResponse later = answers.Start(UntilStopped);
  if (later.status == 202) later = AwaitWhole(&answers, JobOf(later));
  EXPECT_EQ(later.status, 503);
}

}  // namespace
}  // namespace varve::internal::cli
