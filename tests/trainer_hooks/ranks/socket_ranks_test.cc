// SPDX-License-Identifier: Apache-2.0
//
// Tests what only ranks over sockets have: an environment, a port to which strangers come, and
// peers that may send anything. The ranks are threads here, each with a group of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <thread>

#include "base/coding.h"
#include "base/util.h"
#include "tests/support/comes_true.h"
#include "tests/trainer_hooks/ranks/rank_launcher.h"
#include "trainer_hooks/ranks/doorman.h"
#include "trainer_hooks/ranks/message_stream.h"

namespace varve::internal::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

Deadline In(milliseconds time) { return std::chrono::steady_clock::now() + time; }

SocketRanksOptions Options(int rank, int size, uint16_t port) {
  SocketRanksOptions options{.rank = rank, .size = size, .port = port, .job = "test"};
  options.timeout = options.meeting_timeout = std::chrono::minutes(2);
  return options;
}

// Forms a group and checks that it works.
void FormAndTalk(const SocketRanksOptions& options) {
  const auto group = SocketRanks(options);
  ASSERT_TRUE(group.ok()) << group.status().ToString();
  const std::vector<int64_t> mine{options.rank};
  EXPECT_EQ((*group)->AllReduce(mine, Reduction::kMax).value()[0], options.size - 1);
  EXPECT_TRUE((*group)->Barrier().ok());
}

std::vector<std::thread> StartRanks(int first, int size, uint16_t port) {
  std::vector<std::thread> ranks;
  for (int r = first; r < size; ++r) {
    ranks.emplace_back([=] { FormAndTalk(Options(r, size, port)); });
  }
  return ranks;
}
void JoinAll(std::vector<std::thread> threads) {
  for (std::thread& thread : threads) thread.join();
}

// Connects as soon as something listens there.
Socket ConnectTo(uint16_t port) {
  while (true) {
    auto socket = Connect({"127.0.0.1", port}, In(std::chrono::seconds(60)));
    if (socket.ok()) return *std::move(socket);
    std::this_thread::sleep_for(milliseconds(2));
  }
}

Socket ConnectAndSay(uint16_t port, const std::string& words) {
  Socket socket = ConnectTo(port);
  SendAll(socket, std::as_bytes(std::span(words)), In(std::chrono::seconds(60))).IgnoreError();
  return socket;
}

TEST(SocketRanksTest, WhoHasLeftIsKnownWithoutACall) {
  const uint16_t port = FreePort();
  std::vector<std::unique_ptr<RankGroup>> groups(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] { groups[r] = SocketRanks(Options(r, 3, port)).value(); });
  }
  JoinAll(std::move(threads));
  EXPECT_THAT(groups[0]->gone(), ::testing::IsEmpty());
  groups[1].reset();
  for (const int r : {0, 2}) {
    EXPECT_TRUE(ComesTrue([&] { return !groups[r]->gone().empty(); }));
    EXPECT_THAT(groups[r]->gone(), ::testing::ElementsAre(1));
  }
}

TEST(SocketRanksTest, StrangersDoNotDisturb) {
  const uint16_t port = FreePort();
  std::thread first([=] { FormAndTalk(Options(0, 3, port)); });
  std::vector<Socket> strangers;
  strangers.push_back(ConnectTo(port));  // says nothing
  strangers.push_back(ConnectAndSay(port, "GET / HTTP/1.1\r\n\r\n"));
  strangers.push_back(ConnectAndSay(port, std::string(1000, 'x')));
  strangers.push_back(ConnectAndSay(port, std::string(64, '\0')));
  ConnectAndSay(port, "gone at once");
  std::vector<std::thread> others = StartRanks(1, 3, port);
  first.join();
  JoinAll(std::move(others));
}

// There are more strangers than may wait at the door. Then the oldest is turned away, and a member
// of the group tries again.
TEST(SocketRanksTest, ManySilentStrangersDoNotDisturb) {
  const uint16_t port = FreePort();
  std::thread first([=] { FormAndTalk(Options(0, 3, port)); });
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(ConnectTo(port));
  std::vector<std::thread> others = StartRanks(1, 3, port);
  first.join();
  JoinAll(std::move(others));
}

// The hello of rank `rank`, as Introduce sends it, on a connection that stays.
Result<Socket> ComeAs(int rank, int size, const std::string& job, uint16_t port,
                      milliseconds patience = milliseconds(500)) {
  std::vector<int> names(size);
  for (int r = 0; r < size; ++r) names[r] = r;
  return Introduce({job, rank, names}, {"127.0.0.1", port}, In(patience));
}

TEST(SocketRanksTest, AnotherJobIsTurnedAway) {
  const uint16_t port = FreePort();
  std::thread first([=] { FormAndTalk(Options(0, 2, port)); });
  const auto stranger = ComeAs(1, 2, "another job", port);
  EXPECT_EQ(stranger.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(stranger.status().message(), HasSubstr("rank 1 does not get through to 127.0.0.1:"));
  JoinAll(StartRanks(1, 2, port));
  first.join();
}

TEST(SocketRanksTest, RanksThatDoNotFitAreToldWhy) {
  const uint16_t port = FreePort();
  SocketRanksOptions options = Options(0, 3, port);
  options.meeting_timeout = std::chrono::seconds(12);
  std::thread first([=] {
    const auto group = SocketRanks(options);
    EXPECT_EQ(group.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(group.status().message(), HasSubstr("rank 2 did not come to rank 0 at 127.0.0.1:"));
    EXPECT_THAT(group.status().message(), HasSubstr("; a rank 0 of 3 was turned away"));
  });
  const auto one = ComeAs(1, 3, "test", port, options.meeting_timeout);
  EXPECT_TRUE(one.ok()) << one.status().ToString();
  // A busy rank 0 may not answer in time.
  const auto is_told = [port](int rank, int size, const std::string& why) {
    return ComesTrue([&] {
      return ComeAs(rank, size, "test", port).status().message().find(why) != std::string::npos;
    });
  };
  EXPECT_TRUE(is_told(1, 3, "another process has come as this rank"));
  EXPECT_TRUE(is_told(1, 2, "it is of a group of 3 ranks, this one of a group of 2"));
  EXPECT_TRUE(is_told(0, 3, "it does not expect this rank"));
  first.join();
}

TEST(SocketRanksTest, WhoDoesNotComeIsNamed) {
  SocketRanksOptions options = Options(0, 5, FreePort());
  options.meeting_timeout = milliseconds(200);
  const auto group = SocketRanks(options);
  EXPECT_EQ(group.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(group.status().message(), HasSubstr("ranks 1-4 did not come to rank 0"));
}

TEST(SocketRanksTest, RankZeroThatDoesNotComeIsNamed) {
  SocketRanksOptions options = Options(1, 2, FreePort());
  options.meeting_timeout = milliseconds(200);
  const auto group = SocketRanks(options);
  EXPECT_EQ(group.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(group.status().message(),
              HasSubstr("rank 1 does not get through to 127.0.0.1:" + std::to_string(options.port) +
                        ": Connection refused"));
}

TEST(SocketRanksTest, PortInUseIsAnError) {
  const auto taken = Listen({"127.0.0.1", 0});
  const auto group = SocketRanks(Options(0, 2, LocalEndpoint(*taken)->port));
  EXPECT_EQ(group.status().code(), StatusCode::kIOError);
  EXPECT_THAT(group.status().message(), HasSubstr("cannot listen at 127.0.0.1:"));
}

TEST(SocketRanksTest, OptionsThatCannotBe) {
  for (const auto& [rank, size, port] :
       std::vector<std::tuple<int, int, int>>{{0, 0, 1}, {2, 2, 1}, {-1, 2, 1}, {0, 2, 0}}) {
    const auto group = SocketRanks(Options(rank, size, static_cast<uint16_t>(port)));
    EXPECT_EQ(group.status().code(), StatusCode::kInvalidArgument) << rank << " " << size;
  }
}

// Connections to rank 0 that are, for all it knows, the ranks 1 to size - 1.
std::vector<Socket> JoinRankZero(int size, uint16_t port) {
  const Deadline deadline = In(std::chrono::seconds(60));
  std::vector<Socket> sockets;
  for (int rank = 1; rank < size; ++rank) {
    auto socket = ComeAs(rank, size, "test", port, std::chrono::seconds(60));
    EXPECT_TRUE(socket.ok()) << socket.status().ToString();
    EXPECT_TRUE(SendAll(*socket, std::vector<std::byte>(2), deadline).ok());  // its port
    sockets.push_back(*std::move(socket));
  }
  for (const Socket& socket : sockets) {
    std::vector<std::byte> table(static_cast<size_t>(size) * 64);
    EXPECT_TRUE(ReceiveAll(socket, table, deadline).ok());
  }
  return sockets;
}

// Makes a rank of the right job that then sends only `bytes` instead of a message. Returns what
// rank 0 says.
Status RankZeroBeside(const std::vector<std::byte>& bytes) {
  const uint16_t port = FreePort();
  Status status;
  std::thread first([&] {
    const auto group = SocketRanks(Options(0, 2, port));
    status = group.ok() ? (*group)->Barrier() : group.status();
  });
  const std::vector<Socket> one = JoinRankZero(2, port);
  EXPECT_TRUE(SendAll(one[0], bytes, In(std::chrono::seconds(60))).ok());
  ::shutdown(one[0].fd(), SHUT_WR);
  first.join();
  return status;
}

std::vector<std::byte> HeadAnd(const PieceHead& head, size_t more) {
  const HeadBytes bytes = Encode(head);
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  all.resize(all.size() + more);
  return all;
}

TEST(SocketRanksTest, GarbageIsAnErrorThatNamesTheRank) {
  const Call barrier{CallKind::kBarrier, 0, 1};
  const std::map<std::string, std::vector<std::byte>> cases{
      {"no magic", std::vector<std::byte>(kHeadBytes)},
      {"empty piece of a message", HeadAnd({barrier, 0, 1}, 0)},
      {"piece longer than the message", HeadAnd({barrier, 2, 1}, 0)},
      {"piece too long", HeadAnd({barrier, kPieceBytes + 1, 1 << 30}, 0)},
      {"goodbye too long", HeadAnd({{kGoodbye, 0, 0}, kGoodbyeBytes + 1, kGoodbyeBytes + 1}, 0)},
  };
  for (const auto& [name, bytes] : cases) {
    const Status status = RankZeroBeside(bytes);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << name;
    EXPECT_THAT(status.message(), HasSubstr("rank 1 sends something that is no message")) << name;
  }
}

TEST(SocketRanksTest, PiecesThatContradictEachOtherAreAnError) {
  const Call barrier{CallKind::kBarrier, 0, 1};
  std::vector<std::byte> bytes = HeadAnd({barrier, 10, 100}, 10);
  AppendBytes(HeadAnd({barrier, 10, 101}, 10), &bytes);
  EXPECT_THAT(RankZeroBeside(bytes).message(),
              HasSubstr("rank 1 sends something that is no message"));
  bytes = HeadAnd({barrier, 10, 15}, 10);
  AppendBytes(HeadAnd({barrier, 10, 15}, 10), &bytes);
  EXPECT_THAT(RankZeroBeside(bytes).message(),
              HasSubstr("rank 1 sends something that is no message"));
}

uint64_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

TEST(SocketRanksTest, LengthThatIsOnlyClaimedTakesNoMemory) {
  const uint64_t before = PeakBytes();
  const Call barrier{CallKind::kBarrier, 0, 1};
  // Sends one piece of 2^60 bytes, then closes the connection.
  const Status status = RankZeroBeside(HeadAnd({barrier, 1000, uint64_t{1} << 60}, 1000));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 is gone"));
  EXPECT_LT(PeakBytes() - before, uint64_t{64} << 20);
}

TEST(SocketRanksTest, GoodbyeOfAnUnknownCodeIsUnavailable) {
  const Status status = RankZeroBeside(HeadAnd({{kGoodbye, 77, 0}, 3, 3}, 3));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 gave up"));
}

// However its scope is left.
class SetAtEnd {
 public:
  explicit SetAtEnd(std::promise<void>* promise) : promise_(promise) {}
  ~SetAtEnd() { promise_->set_value(); }
  SetAtEnd(const SetAtEnd&) = delete;
  SetAtEnd& operator=(const SetAtEnd&) = delete;

 private:
  std::promise<void>* const promise_;
};

// Rank 1 has finished the first call and failed in the second when the message of rank 2 comes.
TEST(SocketRanksTest, GoodbyeOfALaterCallDoesNotFailThisOne) {
  const uint16_t port = FreePort();
  std::promise<void> has_failed;
  std::thread first([&] {
    const auto group = SocketRanks(Options(0, 3, port));
    const SetAtEnd at_end(&has_failed);
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    const Status status = (*group)->Barrier();
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_THAT((*group)->Barrier().message(), HasSubstr("rank 1 gave up"));
  });
  const Deadline deadline = In(std::chrono::seconds(60));
  std::vector<Socket> others = JoinRankZero(3, port);
  std::vector<std::byte> bytes = HeadAnd({{CallKind::kBarrier, 0, 1}, 0, 0}, 0);
  const std::vector<std::byte> barrier = bytes;
  AppendBytes(HeadAnd({{kGoodbye, 77, 2}, 3, 3}, 3), &bytes);
  EXPECT_TRUE(SendAll(others[0], bytes, deadline).ok());
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_TRUE(SendAll(others[1], barrier, deadline).ok());
  has_failed.get_future().wait();
  others.clear();
  first.join();
}

// All that comes, however it ends.
std::vector<std::byte> ReceiveUntilClosed(const Socket& socket) {
  std::vector<std::byte> all, some(1 << 16);
  while (true) {
    pollfd fd{.fd = socket.fd(), .events = POLLIN, .revents = 0};
    if (!Poll({&fd, 1}, In(std::chrono::seconds(60)))) return all;
    const Moved moved = ReceiveSome(socket, some);
    if (moved.closed) return all;
    all.insert(all.end(), some.begin(), some.begin() + moved.bytes);
  }
}

// Rank 1 reads late, and sends what rank 0 will never read. The message to it is more than its side
// of the connection takes, so the goodbye waits behind it on the side of rank 0, which leaves.
TEST(SocketRanksTest, GoodbyeReachesWhoReadsLate) {
  const uint16_t port = FreePort();
  std::promise<void> has_failed;
  std::thread first([&] {
    const auto group = SocketRanks(Options(0, 3, port));
    const SetAtEnd at_end(&has_failed);
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    const std::vector<std::byte> mine(kPieceBytes);
    EXPECT_THAT((*group)->AllGather(mine).status().message(), HasSubstr("rank 2 is gone"));
  });
  std::vector<Socket> others = JoinRankZero(3, port);
  others.pop_back();
  has_failed.get_future().wait();
  SendAll(others[0], std::vector<std::byte>(1), In(std::chrono::seconds(60))).IgnoreError();
  std::this_thread::sleep_for(milliseconds(100));
  const std::vector<std::byte> received = ReceiveUntilClosed(others[0]);
  EXPECT_NE(AsString(received).find("rank 2 is gone"), std::string_view::npos)
      << received.size() << " bytes came";
  others.clear();
  first.join();
}

class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                             "VARVE_MASTER_PORT", "TORCHELASTIC_RUN_ID"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
};

TEST(SocketRanksFromEnvTest, AsTorchrunSetsIt) {
  const Environment environment({{"RANK", "3"},
                                 {"WORLD_SIZE", "8"},
                                 {"MASTER_ADDR", "node-1"},
                                 {"MASTER_PORT", "29500"},
                                 {"TORCHELASTIC_RUN_ID", "none"}});
  const auto options = SocketRanksFromEnv();
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->rank, 3);
  EXPECT_EQ(options->size, 8);
  EXPECT_EQ(options->host, "node-1");
  EXPECT_EQ(options->port, 29500);
  EXPECT_EQ(options->job, "none");
  setenv("VARVE_MASTER_PORT", "29600", 1);
  EXPECT_EQ(SocketRanksFromEnv()->port, 29600);
}

TEST(SocketRanksFromEnvTest, NamesWhatIsWrong) {
  const std::map<std::string, std::string> right{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "here"}, {"MASTER_PORT", "29500"}};
  for (const auto& [name, value] : right) {
    auto wrong = right;
    wrong.erase(name);
    const Environment environment(wrong);
    EXPECT_EQ(SocketRanksFromEnv().status().message(), "the environment has no " + name);
  }
  const std::vector<std::tuple<std::string, std::string, std::string>> cases{
      {"RANK", "2", "0 to 1"},
      {"RANK", "-1", "0 to 1"},
      {"RANK", "", "0 to 1"},
      {"RANK", "1x", "0 to 1"},
      {"WORLD_SIZE", "0", "1 to 65536"},
      {"MASTER_PORT", "0", "1 to 65535"},
      {"MASTER_PORT", "65536", "1 to 65535"}};
  for (const auto& [name, value, range] : cases) {
    auto wrong = right;
    wrong[name] = value;
    const Environment environment(wrong);
    EXPECT_EQ(SocketRanksFromEnv().status().message(),
              name + " is '" + value + "' in the environment, not " + range);
  }
}

}  // namespace
}  // namespace varve::internal::testing
