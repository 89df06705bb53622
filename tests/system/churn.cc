// SPDX-License-Identifier: Apache-2.0
//
// Both sides of the tests of readers and backups beside a writer. Step and content number are
// always equal.
//
//   churn write STORE          saves and drops as fast as it can until its standard input ends
//   churn open  STORE COUNT    opens the store COUNT times, each time reads the newest step whole
//   churn follow STORE COUNT   opens it once and reads the newest step COUNT times
//   churn backup STORE COPY COUNT  backs it up COUNT times, each time checks and reads all of the
//   copy
//
// A reader prints each anomaly and, last, `opens N whole N vanished N anomalies N`. A step that is
// dropped while it is read may vanish. Nothing else may happen to it.
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/step_content.h"

namespace varve::internal::testing {
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

// Catches up every other time. In between the reader may be behind and must cope by itself.
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

// The copy is a state that the store had: its steps are whole, follow each other, and the newest
// one is not older than at the last backup.
Status CheckCopy(const char* path, uint64_t* newest) {
  VARVE_ASSIGN_OR_RETURN(const auto copy, Store::OpenForReading(path));
  VARVE_ASSIGN_OR_RETURN(const CheckReport check, copy->Check({.read_data = true}));
  if (!check.ok()) return Status::Corruption("check: " + check.errors[0]);
  VARVE_ASSIGN_OR_RETURN(const auto infos, copy->ListCheckpoints("main"));
  if (infos.empty()) return Status::Corruption("the copy has no step");
  for (size_t i = 0; i < infos.size(); ++i) {
    const uint64_t step = infos[i].id.step;
    if (step != infos[0].id.step + i) {
      return Status::Corruption("step " + std::to_string(step) + " does not follow the one before");
    }
    VARVE_ASSIGN_OR_RETURN(const auto reader, copy->OpenCheckpoint("main", step));
    VARVE_ASSIGN_OR_RETURN(const uint64_t content, ReadContentNumber(*reader));
    if (content != step) return Status::Corruption("this is the content of another step");
    VARVE_RETURN_IF_ERROR(VerifyContent(*reader, kPlan));
  }
  if (infos.back().id.step < *newest) return Status::Corruption("the newest step went back");
  *newest = infos.back().id.step;
  return Status::Ok();
}

int BackUpAndCheck(const char* path, const char* copy, int count) {
  uint64_t newest = 0, grown = 0, copied = 0, total = 0;
  int anomalies = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t before = newest;
    const auto report = BackUp(path, copy);
    const Status status = report.ok() ? CheckCopy(copy, &newest) : report.status();
    if (!status.ok()) {
      ++anomalies;
      std::printf("anomaly at backup %d: %s\n", i, status.ToString().c_str());
      continue;
    }
    grown += newest > before ? 1 : 0;
    copied += report->copied_bytes;
    total += report->total_bytes;
  }
  std::printf("backups %d grown %llu copied %llu of %llu bytes anomalies %d\n", count,
              static_cast<unsigned long long>(grown), static_cast<unsigned long long>(copied),
              static_cast<unsigned long long>(total), anomalies);
  return 0;
}

int Main(int argc, char** argv) {
  const std::string_view verb = argc > 2 ? argv[1] : "";
  if (verb == "write") return Write(argv[2]);
  if (verb == "open" && argc == 4) return OpenAndRead(argv[2], std::atoi(argv[3]));
  if (verb == "follow" && argc == 4) return Follow(argv[2], std::atoi(argv[3]));
  if (verb == "backup" && argc == 5) return BackUpAndCheck(argv[2], argv[3], std::atoi(argv[4]));
  std::fputs(
      "usage: churn write STORE | open STORE COUNT | follow STORE COUNT | backup STORE COPY "
      "COUNT\n",
      stderr);
  return 2;
}

}  // namespace
}  // namespace varve::internal::testing

int main(int argc, char** argv) { return varve::internal::testing::Main(argc, argv); }
