// SPDX-License-Identifier: Apache-2.0
//
// TCP sockets that never block: what waits has a deadline. No call raises SIGPIPE, and no child
// process inherits a socket.
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

namespace varve {

using Deadline = std::chrono::steady_clock::time_point;

struct Endpoint {
  std::string host;  // a name, or an address in figures
  uint16_t port = 0;
};
// "127.0.0.1:29500"
std::string ToString(const Endpoint& endpoint);

class Socket {
 public:
  Socket() = default;  // none
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
  bool closed = false;  // by the other side, or broken; no more will move
};
// As much as goes at once, perhaps nothing. Precondition: there is something to move.
Moved ReceiveSome(const Socket& socket, std::span<std::byte> into);
// Two parts, as if they were one.
Moved SendSome(const Socket& socket, std::span<const std::byte> first,
               std::span<const std::byte> second);

// The other side sees the end behind what was sent; receiving goes on.
void EndSending(const Socket& socket);

// All of it, or kUnavailable says "is gone" or "did not answer in time".
Status ReceiveAll(const Socket& socket, std::span<std::byte> into, Deadline deadline);
Status SendAll(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);

// poll(2) until the deadline, whatever signals come. False: in time nothing happened.
bool Poll(std::span<pollfd> fds, Deadline deadline);

// A listening socket; port 0 takes a free one. kIOError says why not.
Result<Socket> Listen(const Endpoint& at);
// An invalid socket when nobody is waiting; kIOError when there can be no more sockets.
Result<Socket> Accept(const Socket& listener);
// kUnavailable says why not.
Result<Socket> Connect(const Endpoint& to, Deadline deadline);

// The addresses of a connection, in figures.
Result<Endpoint> LocalEndpoint(const Socket& socket);
Result<Endpoint> RemoteEndpoint(const Socket& socket);

}  // namespace varve
