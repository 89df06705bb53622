// SPDX-License-Identifier: Apache-2.0
//
// Both sides of the test of readers beside a writer. Step and content number are always equal.
//
//   churn write STORE          saves and drops as fast as it can until its standard input ends
//   churn open  STORE COUNT    opens the store COUNT times, each time reads the newest step whole
//   churn follow STORE COUNT   opens it once and reads the newest step COUNT times
//
// A reader prints each anomaly and, last, `opens N whole N vanished N anomalies N`. A step that is
// dropped while it is read may vanish; nothing else may happen to it.
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/step_content.h"

namespace varve::testing {
namespace {

constexpr ContentPlan kPlan{
    .seed = 21, .num_tensors = 7, .max_tensor_bytes = uint64_t{16} << 10, .period = 3};
constexpr size_t kKeep = 4;        // steps left after a drop
constexpr size_t kDropEvery = 12;  // saves between two drops

int Fail(const std::string& doing, const Status& status) {
  std::fprintf(stderr, "churn: %s: %s\n", doing.c_str(), status.ToString().c_str());
  return 1;
}

bool InputHasEnded() {
  pollfd input{.fd = 0, .events = POLLIN, .revents = 0};
  return poll(&input, 1, 0) != 0;
}

Status DropOldest(Store* store, std::deque<uint64_t>* steps) {
  std::vector<CheckpointId> ids;
  for (; steps->size() > kKeep; steps->pop_front()) ids.push_back({"main", steps->front()});
  return store->Drop(ids).status();
}

int Write(const char* path) {
  auto store = Store::OpenOrCreate(path);
  if (!store.ok()) return Fail("open", store.status());
  const auto start = std::chrono::steady_clock::now();
  std::deque<uint64_t> live;
  uint64_t step = 0;
  for (; step == 0 || !InputHasEnded(); ++step) {
    const auto report = SaveContent(store->get(), kPlan, step, step);
    if (!report.ok()) return Fail("save", report.status());
    if (step == 0) std::puts("started"), std::fflush(stdout);
    live.push_back(step);
    if (live.size() < kKeep + kDropEvery) continue;
    if (Status status = DropOldest(store->get(), &live); !status.ok()) return Fail("drop", status);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("commits %llu seconds %.3f\n", static_cast<unsigned long long>(step),
              elapsed.count());
  return 0;
}

class Reader {
 public:
  // One look at the newest step. `store` is a Result so that a failed open is an anomaly, too.
  void Look(const Result<std::unique_ptr<Store>>& store) {
    ++opens_;
    const Status status = store.ok() ? ReadNewest(**store) : store.status();
    if (status.ok()) {
      ++whole_;
    } else if (store.ok() && status.code() == StatusCode::kNotFound && step_is_known_) {
      ++vanished_;
    } else {
      ++anomalies_;
      std::printf("anomaly at open %d: %s\n", opens_, status.ToString().c_str());
    }
  }

  int Finish() const {
    std::printf("opens %d whole %d vanished %d anomalies %d\n", opens_, whole_, vanished_,
                anomalies_);
    return 0;
  }

 private:
  Status ReadNewest(const Store& store) {
    step_is_known_ = false;
    VARVE_ASSIGN_OR_RETURN(const auto newest, store.LatestStep("main"));
    if (!newest) return Status::Corruption("there is no step, but one is always there");
    if (*newest < last_) return Status::Corruption("the newest step went back");
    last_ = *newest;
    step_is_known_ = true;
    VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint("main", last_));
    VARVE_ASSIGN_OR_RETURN(const uint64_t content, ReadContentNumber(*reader));
    if (content != last_) return Status::Corruption("this is the content of another step");
    return VerifyContent(*reader, kPlan);
  }

  int opens_ = 0;
  int whole_ = 0;
  int vanished_ = 0;
  int anomalies_ = 0;
  bool step_is_known_ = false;
  uint64_t last_ = 0;
};

int OpenAndRead(const char* path, int count) {
  Reader reader;
  for (int i = 0; i < count; ++i) reader.Look(Store::OpenForReading(path));
  return reader.Finish();
}

// Catches up every other time; in between the reader may be behind and must cope by itself.
int Follow(const char* path, int count) {
  Reader reader;
  const auto store = Store::OpenForReading(path);
  for (int i = 0; i < count; ++i) {
    if (store.ok() && i % 2 == 0) {
      if (Status status = (*store)->CatchUp(); !status.ok()) return Fail("catch up", status);
    }
    reader.Look(store);
  }
  return reader.Finish();
}

int Main(int argc, char** argv) {
  const std::string_view verb = argc > 2 ? argv[1] : "";
  if (verb == "write") return Write(argv[2]);
  if (verb == "open" && argc == 4) return OpenAndRead(argv[2], std::atoi(argv[3]));
  if (verb == "follow" && argc == 4) return Follow(argv[2], std::atoi(argv[3]));
  std::fputs("usage: churn write STORE | open STORE COUNT | follow STORE COUNT\n", stderr);
  return 2;
}

}  // namespace
}  // namespace varve::testing

int main(int argc, char** argv) { return varve::testing::Main(argc, argv); }
