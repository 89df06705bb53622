// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer_hooks/ranks/rank_scripts.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

namespace varve::internal::testing {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
namespace fs = std::filesystem;

// Returns what rank `from` sends to rank `to` in a round. It is a function, so that both know it.
// No two words of two messages are likely to be equal.
Bytes Content(size_t size, int from, int to, int round) {
  constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
  constexpr size_t kMaxWords = 1 << 15;  // then it repeats itself: sanitizers are slow
  const int number = (from * 64 + to) * 1000 + round;
  const auto message = static_cast<uint64_t>(number);
  std::vector<uint64_t> words(std::min(size / sizeof(uint64_t) + 1, kMaxWords));
  for (size_t i = 0; i < words.size(); ++i) words[i] = (message << 32 | i) * kGoldenRatio;
  Bytes bytes(size);
  for (size_t at = 0; at < size; at += words.size() * sizeof(uint64_t) - 1) {
    std::memcpy(bytes.data() + at, words.data(),
                std::min(size - at, words.size() * sizeof(uint64_t) - 1));
  }
  return bytes;
}

bool Same(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

std::vector<std::span<const std::byte>> Views(const std::vector<Bytes>& all) {
  return {all.begin(), all.end()};
}

// Sizes around those at which an implementation cuts messages.
size_t OddSize(int i) {
  constexpr size_t kSizes[] = {0,      1,      7,      4095,   4097,          65536, 3,
                               262143, 262144, 262145, 524288, (4 << 20) + 1, 100};
  return kSizes[static_cast<size_t>(i) % std::size(kSizes)];
}

void CheckAllGather(RankGroup* group, const std::vector<size_t>& sizes, int round) {
  const auto all = group->AllGather(Content(sizes[group->rank()], group->rank(), 0, round));
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  ASSERT_EQ(std::ssize(*all), group->size());
  for (int r = 0; r < group->size(); ++r) {
    EXPECT_TRUE(Same((*all)[r], Content(sizes[r], r, 0, round)))
        << "round " << round << " of rank " << r;
  }
}

void CheckBroadcast(RankGroup* group, int root, size_t size, int round) {
  const Bytes mine = group->rank() == root ? Content(size, root, 0, round) : Bytes();
  const auto got = group->Broadcast(mine, root);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_TRUE(Same(*got, Content(size, root, 0, round))) << "round " << round;
}

template <typename SizeOf>
void CheckAllToAll(RankGroup* group, int round, const SizeOf& size_of) {
  std::vector<Bytes> out;
  for (int r = 0; r < group->size(); ++r) {
    out.push_back(Content(size_of(group->rank(), r), group->rank(), r, round));
  }
  const auto in = group->AllToAll(Views(out));
  ASSERT_TRUE(in.ok()) << in.status().ToString();
  ASSERT_EQ(std::ssize(*in), group->size());
  for (int r = 0; r < group->size(); ++r) {
    EXPECT_TRUE(Same((*in)[r], Content(size_of(r, group->rank()), r, group->rank(), round)))
        << "round " << round << " from rank " << r;
  }
}

void CheckAllReduce(RankGroup* group, int round) {
  const auto value = [&](int r, int i) { return int64_t{(r * 7 + i * 3 + round) % 11} - 5; };
  std::vector<int64_t> mine, least, greatest;
  for (int i = 0; i < round % 5; ++i) {
    mine.push_back(value(group->rank(), i));
    int64_t low = value(0, i), high = low;
    for (int r = 1; r < group->size(); ++r) {
      low = std::min(low, value(r, i));
      high = std::max(high, value(r, i));
    }
    least.push_back(low);
    greatest.push_back(high);
  }
  const auto min = group->AllReduce(mine, Reduction::kMin);
  const auto max = group->AllReduce(mine, Reduction::kMax);
  ASSERT_TRUE(min.ok() && max.ok()) << min.status().ToString() << max.status().ToString();
  EXPECT_EQ(*min, least);
  EXPECT_EQ(*max, greatest);
}

void OddSizes(RankGroup* group, const fs::path&) {
  const int size = group->size();
  for (int round = 0; round < 13; ++round) {
    std::vector<size_t> sizes;
    for (int r = 0; r < size; ++r) sizes.push_back(OddSize(round + 3 * r));
    CheckAllGather(group, sizes, round);
    CheckBroadcast(group, round % size, OddSize(round), round);
    CheckAllToAll(group, round, [&](int from, int to) { return OddSize(round + 5 * from + to); });
  }
}

void ManyRounds(RankGroup* group, const fs::path&) {
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(group->Barrier().ok());
    CheckAllReduce(group, round);
    CheckAllGather(group, std::vector<size_t>(group->size(), round), round);
    CheckBroadcast(group, round % group->size(), round, round);
    CheckAllToAll(group, round, [&](int from, int to) { return from * 31 + to + round; });
  }
}

void ManyBytesToOne(RankGroup* group, const fs::path&) {
  const int last = group->size() - 1;
  CheckAllToAll(group, 1, [&](int, int to) { return to == last ? size_t{64} << 20 : 0; });
  CheckAllToAll(group, 2, [&](int from, int) { return from == last ? size_t{4} << 20 : 1; });
}

void Extremes(RankGroup* group, const fs::path&) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();
  const bool is_first = group->rank() == 0;
  const std::vector<int64_t> mine{is_first ? kLeast : 0, is_first ? kGreatest : 0};
  EXPECT_EQ(group->AllReduce(mine, Reduction::kMin).value()[0], kLeast);
  EXPECT_EQ(group->AllReduce(mine, Reduction::kMax).value()[1], kGreatest);
  EXPECT_EQ(group->AllReduce(mine, Reduction::kMax).value()[0], group->size() == 1 ? kLeast : 0);
}

// A barrier that is not the group's: returns when all of the first `num` ranks have come to it.
void AwaitFiles(const fs::path& folder, const std::string& name, int num) {
  for (int r = 0; r < num; ++r) {
    const fs::path file = folder / (name + "." + std::to_string(r));
    while (!fs::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}
void WriteFile(const fs::path& folder, const std::string& name, int rank) {
  std::ofstream(folder / (name + "." + std::to_string(rank))) << "here";
}

// No rank leaves a call before all have come to it.
void AllCallsAreBarriers(RankGroup* group, const fs::path& folder) {
  for (int round = 0; round < 20; ++round) {
    const std::string name = "round" + std::to_string(round);
    WriteFile(folder, name, group->rank());
    if (round % 2 == 0) {
      ASSERT_TRUE(group->Barrier().ok());
    } else {
      ASSERT_TRUE(group->Broadcast({}, round % group->size()).ok());
    }
    for (int r = 0; r < group->size(); ++r) {
      EXPECT_TRUE(fs::exists(folder / (name + "." + std::to_string(r)))) << name << " " << r;
    }
  }
}

// The parts talk at the same time as each other and as the whole.
void SplitsAndSplitsAgain(RankGroup* group, const fs::path&) {
  const int color = group->rank() % 2;
  auto part = group->Split(color);
  ASSERT_TRUE(part.ok()) << part.status().ToString();
  EXPECT_EQ((*part)->rank(), group->rank() / 2);
  EXPECT_EQ((*part)->size(), (group->size() + 1 - color) / 2);
  const auto mine = std::as_bytes(std::span(&color, 1));
  for (int round = 0; round < 10; ++round) {
    const auto colors = (*part)->AllGather(mine);
    ASSERT_TRUE(colors.ok()) << colors.status().ToString();
    for (const Bytes& other : *colors) EXPECT_TRUE(std::ranges::equal(other, mine));
    CheckAllToAll(part->get(), round, [&](int, int) { return 100'000; });
    if (round % 3 == 0) {
      ASSERT_TRUE(group->Barrier().ok());
    }
  }
  auto alone = (*part)->Split(-(*part)->rank());
  ASSERT_TRUE(alone.ok()) << alone.status().ToString();
  EXPECT_EQ((*alone)->size(), 1);
  EXPECT_TRUE((*alone)->Barrier().ok());
  part->reset();
  EXPECT_TRUE((*alone)->Barrier().ok());
  EXPECT_TRUE(group->Barrier().ok());
}

std::string NameOfLast(const RankGroup& group) {
  return "rank " + std::to_string(group.size() - 1);
}

// After an error every call returns it.
void ExpectFailed(RankGroup* group, const Status& failure) {
  const Bytes none;
  const std::vector<std::span<const std::byte>> nothing(group->size());
  EXPECT_EQ(group->Barrier().ToString(), failure.ToString());
  EXPECT_EQ(group->AllGather(none).status().ToString(), failure.ToString());
  EXPECT_EQ(group->Broadcast(none, 0).status().ToString(), failure.ToString());
  EXPECT_EQ(group->AllReduce({}, Reduction::kMin).status().ToString(), failure.ToString());
  EXPECT_EQ(group->AllToAll(nothing).status().ToString(), failure.ToString());
  EXPECT_EQ(group->Split(0).status().ToString(), failure.ToString());
}

// The last rank comes only when all others have given up, and is told why.
void OneDoesNotCome(RankGroup* group, const fs::path& folder) {
  const int last = group->size() - 1;
  WriteFile(folder, "started", group->rank());
  AwaitFiles(folder, "started", group->size());
  group->set_timeout(kImpatience);
  if (group->rank() == last) AwaitFiles(folder, "gave_up", last);
  const Status status = group->Barrier();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(NameOfLast(*group) + " did not come within 3000 ms"));
  ExpectFailed(group, status);
  // Nobody leaves before all have seen it: a closed connection would be another reason.
  WriteFile(folder, "gave_up", group->rank());
  AwaitFiles(folder, "gave_up", group->size());
}

// Rounds that end with the error that the last rank causes.
Status RoundsUntilError(RankGroup* group, size_t bytes) {
  const std::vector<Bytes> out(group->size(), Bytes(bytes));
  while (true) {
    VARVE_RETURN_IF_ERROR(group->Barrier());
    VARVE_RETURN_IF_ERROR(group->AllToAll(Views(out)).status());
  }
}

void ExpectLastIsMissed(RankGroup* group, size_t bytes) {
  const Status status = RoundsUntilError(group, bytes);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(NameOfLast(*group) + " "));
  ExpectFailed(group, status);
}

// Over MPI it is missed, elsewhere it is known to have left.
void OneLeaves(RankGroup* group, const fs::path&) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(group->Barrier().ok());
    ASSERT_TRUE(group->AllToAll(Views(std::vector<Bytes>(group->size(), Bytes(1000)))).ok());
  }
  if (group->rank() == group->size() - 1) return;
  group->set_timeout(kImpatience);
  ExpectLastIsMissed(group, 1000);
}

// A rank that finishes and leaves first does not disturb the others, which still have to hear from
// one another.
void AllLeaveAtOnce(RankGroup* group, const fs::path&) {
  const auto all = group->AllGather(Content(300'000, group->rank(), 0, 0));
  EXPECT_TRUE(all.ok()) << all.status().ToString();
}

void KilledBetweenCalls(RankGroup* group, const fs::path&) {
  if (group->rank() < group->size() - 1) return ExpectLastIsMissed(group, 1000);
  ASSERT_TRUE(group->Barrier().ok());
  std::raise(SIGKILL);
}

void KilledWhileSending(RankGroup* group, const fs::path&) {
  constexpr size_t kBytes = 8 << 20;
  if (group->rank() < group->size() - 1) return ExpectLastIsMissed(group, kBytes);
  std::thread killer([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::raise(SIGKILL);
  });
  EXPECT_TRUE(RoundsUntilError(group, kBytes).ok());  // does not return
  killer.join();
}

void OneMakesAnotherCall(RankGroup* group, const fs::path&) {
  ASSERT_TRUE(group->Barrier().ok());
  const bool is_last = group->rank() == group->size() - 1;
  const Status status = is_last ? group->AllGather({}).status() : group->Barrier();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("all-gather (call 2)"));
  EXPECT_THAT(status.message(), HasSubstr("barrier (call 2)"));
  ExpectFailed(group, status);
}

void RootsDiffer(RankGroup* group, const fs::path&) {
  const bool is_last = group->rank() == group->size() - 1;
  const Status status = group->Broadcast({}, is_last ? 1 : 0).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("broadcast from 0 (call 1)"));
  EXPECT_THAT(status.message(), HasSubstr("broadcast from 1 (call 1)"));
}

void LengthsOfReduceDiffer(RankGroup* group, const fs::path&) {
  const std::vector<int64_t> mine(group->rank() == group->size() - 1 ? 3 : 2);
  const Status status = group->AllReduce(mine, Reduction::kMax).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(group->size() - 1) + " has 24"));
  ExpectFailed(group, status);
}

// A rank that cannot even start a call still tells the others.
void TooManyMessages(RankGroup* group, const fs::path&) {
  const int extra = group->rank() == 0 ? 1 : 0;
  const std::vector<std::span<const std::byte>> out(group->size() + extra);
  const Status status = group->AllToAll(out).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("all-to-all of " + std::to_string(group->size() + 1) +
                        " messages in a group of " + std::to_string(group->size())));
}

void NoSuchRoot(RankGroup* group, const fs::path&) {
  const Status status = group->Broadcast({}, group->size()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  ExpectFailed(group, status);
}

}  // namespace

const std::map<std::string, RankScript>& RankScripts() {
  static const std::map<std::string, RankScript> scripts{
      {"AllCallsAreBarriers", {.run = AllCallsAreBarriers}},
      {"AllLeaveAtOnce", {.run = AllLeaveAtOnce}},
      {"Extremes", {.run = Extremes}},
      {"KilledBetweenCalls", {.run = KilledBetweenCalls, .last_is_killed = true, .min_size = 2}},
      {"KilledWhileSending", {.run = KilledWhileSending, .last_is_killed = true, .min_size = 2}},
      {"LengthsOfReduceDiffer", {.run = LengthsOfReduceDiffer, .min_size = 2}},
      {"ManyBytesToOne", {.run = ManyBytesToOne}},
      {"ManyRounds", {.run = ManyRounds}},
      {"NoSuchRoot", {.run = NoSuchRoot}},
      {"OddSizes", {.run = OddSizes}},
      {"OneDoesNotCome", {.run = OneDoesNotCome, .min_size = 2}},
      {"OneLeaves", {.run = OneLeaves, .min_size = 2}},
      {"OneMakesAnotherCall", {.run = OneMakesAnotherCall, .min_size = 2}},
      {"RootsDiffer", {.run = RootsDiffer, .min_size = 2}},
      {"SplitsAndSplitsAgain", {.run = SplitsAndSplitsAgain}},
      {"TooManyMessages", {.run = TooManyMessages}},
  };
  return scripts;
}

}  // namespace varve::internal::testing
