// SPDX-License-Identifier: Apache-2.0
#include "cli/view/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace varve::internal::cli {
namespace {

// How often a thread that waits for its client looks whether it is in haste by now.
constexpr std::chrono::milliseconds kLook{20};

bool Awaits(int socket, short events, std::chrono::milliseconds time) {
  pollfd polled{.fd = socket, .events = events, .revents = 0};
  return ::poll(&polled, 1, static_cast<int>(time.count())) > 0;
}

}  // namespace

Connection::Connection(int socket, const Limits& limits, std::function<bool()> in_haste)
    : socket_(socket), limits_(limits), in_haste_(std::move(in_haste)) {}

bool Connection::IsOver(Time since, Duration limit) const {
  const auto time = std::chrono::steady_clock::now() - since;
  return time >= (in_haste_() ? std::min(limit, limits_.hasty_time) : limit);
}

// What has come already is taken however late this thread gets to it.
bool Connection::AwaitRequest() {
  const Time start = std::chrono::steady_clock::now();
  num_received_ = end_ - next_;
  while (!has_unread() && !Awaits(socket_, POLLIN, kLook)) {
    if (IsOver(start, limits_.idle_time)) return false;
  }
  request_started_ = std::chrono::steady_clock::now();
  return has_unread() || Receive() > 0;
}

ssize_t Connection::Read(char* to, size_t size) {
  while (!has_unread()) {
    if (num_received_ >= limits_.request_bytes) return -1;
    if (IsOver(request_started_, limits_.request_time)) return -1;
    if (!Awaits(socket_, POLLIN, kLook)) continue;
    if (const ssize_t received = Receive(); received <= 0) return received;
  }
  const size_t count = std::min(size, end_ - next_);
  std::memcpy(to, buffer_.data() + next_, count);
  next_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::Receive() {
  const ssize_t received = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  next_ = 0;
  end_ = static_cast<size_t>(std::max<ssize_t>(received, 0));
  num_received_ += end_;
  return received;
}

ssize_t Connection::Write(const char* from, size_t size) {
  if (!AwaitWritable()) return -1;
  return ::send(socket_, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool Connection::AwaitWritable() const { return Awaits(socket_, POLLOUT, limits_.write_time); }

}  // namespace varve::internal::cli
