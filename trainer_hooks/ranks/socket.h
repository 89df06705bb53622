// SPDX-License-Identifier: Apache-2.0
//
// TCP sockets that never block. Functions that wait have a deadline. No call raises SIGPIPE, and no
// child process inherits a socket.
//
// Thread rule: one thread at a time for each socket.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "varve/result.h"

namespace varve::internal {

using Deadline = std::chrono::steady_clock::time_point;

struct Endpoint {
  std::string host;  // a name or a numeric address
  uint16_t port = 0;
};
// "127.0.0.1:29500"
std::string ToString(const Endpoint& endpoint);

class Socket {
 public:
  Socket() = default;  // no socket
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// How a step of sending or receiving ended.
struct Moved {
  size_t bytes = 0;
  bool closed = false;  // the other side closed it, or it broke. No more bytes will move
};
// Receives what is there without waiting, perhaps nothing. Precondition: `into` is not empty.
Moved ReceiveSome(const Socket& socket, std::span<std::byte> into);
// Sends two parts as if they were one.
Moved SendSome(const Socket& socket, std::span<const std::byte> first,
               std::span<const std::byte> second);

// Tells the other side that no more bytes come after those that were sent. Receiving continues.
void EndSending(const Socket& socket);

// Receives or sends all bytes. kUnavailable says "is gone" or "did not answer in time".
Status ReceiveAll(const Socket& socket, std::span<std::byte> into, Deadline deadline);
Status SendAll(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);

// Runs poll(2) until the deadline, whatever signals come. Returns false when nothing happened in
// time.
bool Poll(std::span<pollfd> fds, Deadline deadline);

// Returns a listening socket. Port 0 takes a free port. kIOError says why it failed.
Result<Socket> Listen(const Endpoint& at);
// Returns an invalid socket when nobody is waiting. kIOError: no more sockets can be opened.
Result<Socket> Accept(const Socket& listener);
// kUnavailable says why it failed.
Result<Socket> Connect(const Endpoint& to, Deadline deadline);

// Return the numeric addresses of a connection.
Result<Endpoint> LocalEndpoint(const Socket& socket);
Result<Endpoint> RemoteEndpoint(const Socket& socket);

}  // namespace varve::internal
