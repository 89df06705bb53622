// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/ranks/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>

namespace varve::internal {

namespace {

std::string Reason(int error) { return std::strerror(error); }

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

void SetOption(const Socket& socket, int level, int option) {
  const int on = 1;
  // A failure is harmless: the options only make the socket faster, or free its port sooner.
  (void)setsockopt(socket.fd(), level, option, &on, sizeof(on));
}

Moved FromReturn(ssize_t result) {
  if (result >= 0) return {.bytes = static_cast<size_t>(result)};
  return {.closed = !WouldBlock(errno)};
}

// The milliseconds for poll: at least as many as are left, and at least 0.
int PollTimeout(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  constexpr std::chrono::milliseconds kLongest{3'600'000};
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kLongest).count());
}

Status AwaitReady(const Socket& socket, short events, Deadline deadline) {
  pollfd fd{.fd = socket.fd(), .events = events, .revents = 0};
  if (Poll({&fd, 1}, deadline)) return Status::Ok();
  return Status::Unavailable("did not answer in time");
}

// Tries each address of an endpoint, in the order of the system, until one succeeds.
Result<Socket> TryAddresses(const Endpoint& endpoint, int flags,
                            const std::function<Status(const Socket&, const addrinfo&)>& attempt) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0) return Status::Unavailable(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  Status status = Status::Unavailable("no address");
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    Socket socket(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    status = socket.valid() ? attempt(socket, *address) : Status::Unavailable(Reason(errno));
    if (status.ok()) return socket;
  }
  return status;
}

Result<Endpoint> ToEndpoint(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host,
                                sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return Status::IOError(gai_strerror(error));
  return Endpoint{host, static_cast<uint16_t>(std::stoi(port))};
}

using NameFunction = int (*)(int, sockaddr*, socklen_t*);
Result<Endpoint> EndpointOf(const Socket& socket, NameFunction name) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (name(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Status::Unavailable(Reason(errno));
  }
  return ToEndpoint(address, size);
}

}  // namespace

std::string ToString(const Endpoint& endpoint) {
  return endpoint.host + ":" + std::to_string(endpoint.port);
}

Socket::~Socket() {
  if (valid()) ::close(fd_);
}

Moved ReceiveSome(const Socket& socket, std::span<std::byte> into) {
  const ssize_t result = ::recv(socket.fd(), into.data(), into.size(), 0);
  if (result == 0) return {.closed = true};
  return FromReturn(result);
}

Moved SendSome(const Socket& socket, std::span<const std::byte> first,
               std::span<const std::byte> second) {
  iovec parts[] = {{const_cast<std::byte*>(first.data()), first.size()},
                   {const_cast<std::byte*>(second.data()), second.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return FromReturn(::sendmsg(socket.fd(), &message, MSG_NOSIGNAL));
}

void EndSending(const Socket& socket) {
  (void)::shutdown(socket.fd(), SHUT_WR);  // it fails only where the other side is gone
}

Status ReceiveAll(const Socket& socket, std::span<std::byte> into, Deadline deadline) {
  while (!into.empty()) {
    VARVE_RETURN_IF_ERROR(AwaitReady(socket, POLLIN, deadline));
    const Moved moved = ReceiveSome(socket, into);
    if (moved.closed) return Status::Unavailable("is gone");
    into = into.subspan(moved.bytes);
  }
  return Status::Ok();
}

Status SendAll(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    VARVE_RETURN_IF_ERROR(AwaitReady(socket, POLLOUT, deadline));
    const Moved moved = SendSome(socket, bytes, {});
    if (moved.closed) return Status::Unavailable("is gone");
    bytes = bytes.subspan(moved.bytes);
  }
  return Status::Ok();
}

bool Poll(std::span<pollfd> fds, Deadline deadline) {
  while (true) {
    const int num_ready = ::poll(fds.data(), fds.size(), PollTimeout(deadline));
    if (num_ready > 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

Result<Socket> Listen(const Endpoint& at) {
  auto socket = TryAddresses(at, AI_PASSIVE, [](const Socket& attempt, const addrinfo& address) {
    SetOption(attempt, SOL_SOCKET, SO_REUSEADDR);
    const bool listens = ::bind(attempt.fd(), address.ai_addr, address.ai_addrlen) == 0 &&
                         ::listen(attempt.fd(), SOMAXCONN) == 0;
    return listens ? Status::Ok() : Status::IOError(Reason(errno));
  });
  if (socket.ok()) return socket;
  return Status::IOError("cannot listen at " + ToString(at) + ": " + socket.status().message());
}

Result<Socket> Accept(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.valid()) {
    SetOption(socket, IPPROTO_TCP, TCP_NODELAY);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    return Status::IOError("cannot accept a connection: " + Reason(errno));
  }
  return socket;
}

Result<Socket> Connect(const Endpoint& to, Deadline deadline) {
  return TryAddresses(to, 0, [&](const Socket& attempt, const addrinfo& address) {
    SetOption(attempt, IPPROTO_TCP, TCP_NODELAY);
    if (::connect(attempt.fd(), address.ai_addr, address.ai_addrlen) == 0) return Status::Ok();
    if (errno != EINPROGRESS && errno != EINTR) return Status::Unavailable(Reason(errno));
    VARVE_RETURN_IF_ERROR(AwaitReady(attempt, POLLOUT, deadline));
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(attempt.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    return error == 0 ? Status::Ok() : Status::Unavailable(Reason(error));
  });
}

Result<Endpoint> LocalEndpoint(const Socket& socket) { return EndpointOf(socket, ::getsockname); }
Result<Endpoint> RemoteEndpoint(const Socket& socket) { return EndpointOf(socket, ::getpeername); }

}  // namespace varve::internal
