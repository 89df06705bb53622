// SPDX-License-Identifier: Apache-2.0
//
// A connection of the server. Its client gets so many bytes and so much time for what a request
// starts with, so that nobody takes the memory or the threads of the server.
//
//   Connection connection(socket, {}, in_haste);
//   while (connection.AwaitRequest()) {
//     ...                                        // Read the request, Write the answer
//   }
//
// Thread rule: one thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>

namespace varve::internal::cli {

class Connection {
 public:
  using Duration = std::chrono::milliseconds;
  struct Limits {
    // Of one request. Nobody needs the body of a GET, so that counts, too.
    size_t request_bytes = size_t{64} << 10;
    Duration request_time = std::chrono::seconds(5);
    // How long the server waits for the start of a request.
    Duration idle_time = std::chrono::seconds(1);
    // Both times, while the server is in haste.
    Duration hasty_time = std::chrono::milliseconds(100);
    Duration write_time = std::chrono::seconds(5);
  };

  // `in_haste` says whether somebody waits for this thread. The caller closes the socket.
  Connection(int socket, const Limits& limits, std::function<bool()> in_haste);

  // Waits for the first bytes of the next request. False: the client has closed the connection, or
  // says nothing.
  bool AwaitRequest();
  // Returns the number of bytes, 0 at the end of the connection, and -1 when the request is longer
  // than it may be, or takes longer.
  ssize_t Read(char* to, size_t size);
  // Returns the number of bytes that were sent, or -1.
  ssize_t Write(const char* from, size_t size);
  // Waits until Write takes bytes. False: the client took nothing in time.
  bool AwaitWritable() const;
  bool has_unread() const { return next_ < end_; }
  int socket() const { return socket_; }

 private:
  using Time = std::chrono::steady_clock::time_point;

  bool IsOver(Time since, Duration limit) const;
  ssize_t Receive();

  const int socket_;
  const Limits limits_;
  const std::function<bool()> in_haste_;
  std::array<char, 4096> buffer_{};
  size_t next_ = 0;          // what was received and not read: buffer_ from here
  size_t end_ = 0;           // to here
  size_t num_received_ = 0;  // bytes of the request
  Time request_started_;
};

}  // namespace varve::internal::cli
