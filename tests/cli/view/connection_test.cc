// SPDX-License-Identifier: Apache-2.0
#include "cli/view/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

namespace varve::internal::cli {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

constexpr Connection::Limits kPatient = {
    .request_time = hours(1), .idle_time = hours(1), .hasty_time = hours(1)};

class ConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0); }
  void TearDown() override {
    for (const int end : ends_) ::close(end);
  }
  Connection Make(const Connection::Limits& limits, bool in_haste = false) {
    return {ends_[0], limits, [in_haste] { return in_haste; }};
  }
  void Say(const std::string& text) {
    ASSERT_EQ(::send(ends_[1], text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void SayNoMore() { ::shutdown(ends_[1], SHUT_WR); }
  // Reads until there is no more. Puts what the last call returned into `last`.
  static std::string ReadAll(Connection* connection, ssize_t* last) {
    std::string text;
    std::array<char, 7> part{};
    while ((*last = connection->Read(part.data(), part.size())) > 0) {
      text.append(part.data(), static_cast<size_t>(*last));
    }
    return text;
  }

  std::array<int, 2> ends_{-1, -1};
};

TEST_F(ConnectionTest, WhatWasSaidIsRead) {
  Connection connection = Make(kPatient);
  const std::string text(10'000, 'a');
  Say(text);
  SayNoMore();
  ssize_t last = -1;
  ASSERT_TRUE(connection.AwaitRequest());
  EXPECT_EQ(ReadAll(&connection, &last), text);
  EXPECT_EQ(last, 0);
  EXPECT_FALSE(connection.AwaitRequest());
}

TEST_F(ConnectionTest, WhatIsThereIsReadHoweverLate) {
  Connection::Limits none = kPatient;
  none.hasty_time = none.idle_time = milliseconds(0);
  Connection connection = Make(none, /*in_haste=*/true);
  Say("GET");
  ASSERT_TRUE(connection.AwaitRequest());
  std::array<char, 3> text{};
  EXPECT_EQ(connection.Read(text.data(), text.size()), 3);
}

TEST_F(ConnectionTest, ALongRequestIsNotReadToItsEnd) {
  Connection::Limits limits = kPatient;
  limits.request_bytes = 10'000;
  Connection connection = Make(limits);
  std::jthread client([this] {
    const std::string text(1000, 'x');
    while (::send(ends_[1], text.data(), text.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  ASSERT_TRUE(connection.AwaitRequest());
  ssize_t last = 0;
  const std::string read = ReadAll(&connection, &last);
  ::shutdown(ends_[0], SHUT_RDWR);  // the client ends
  EXPECT_EQ(last, -1);
  EXPECT_GE(read.size(), limits.request_bytes);
  EXPECT_LT(read.size(), limits.request_bytes + 10'000);
}

TEST_F(ConnectionTest, EachRequestMayBeAsLong) {
  Connection::Limits limits = kPatient;
  limits.request_bytes = 10'000;
  Connection connection = Make(limits);
  for (int i = 0; i < 5; ++i) {
    const std::string text(4000, static_cast<char>('a' + i));
    Say(text);
    ASSERT_TRUE(connection.AwaitRequest());
    std::string read(text.size(), ' ');
    size_t done = 0;
    while (done < read.size()) {
      const ssize_t count = connection.Read(read.data() + done, read.size() - done);
      ASSERT_GT(count, 0);
      done += static_cast<size_t>(count);
    }
    EXPECT_EQ(read, text);
  }
}

// The time is that of a whole request, however often a byte comes.
TEST_F(ConnectionTest, ADrippingRequestEnds) {
  for (const bool in_haste : {false, true}) {
    Connection::Limits limits = kPatient;
    (in_haste ? limits.hasty_time : limits.request_time) = milliseconds(60);
    Connection connection = Make(limits, in_haste);
    Say("x");  // a request has begun, however late the client's thread comes
    EXPECT_TRUE(connection.AwaitRequest());
    std::jthread client([&](const std::stop_token& is_over) {
      while (!is_over.stop_requested()) {
        Say("x");
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
    ssize_t last = 0;
    ReadAll(&connection, &last);
    EXPECT_EQ(last, -1);
  }
}

TEST_F(ConnectionTest, WhoSaysNothingIsNotAwaited) {
  for (const bool in_haste : {false, true}) {
    Connection::Limits limits = kPatient;
    (in_haste ? limits.hasty_time : limits.idle_time) = milliseconds(1);
    EXPECT_FALSE(Make(limits, in_haste).AwaitRequest());
  }
}

}  // namespace
}  // namespace varve::internal::cli
