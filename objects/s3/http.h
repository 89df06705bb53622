// SPDX-License-Identifier: Apache-2.0
//
// Requests of HTTP over libcurl. Connections are kept for the next request. Certificates are
// verified. Thread rule: any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "objects/objects.h"
#include "objects/s3/signature.h"
#include "varve/status.h"

namespace varve::internal::s3 {

// One request and what came back.
struct Exchange {
  std::string method;
  std::string url;  // with its query
  Headers headers;
  // The body, which is a part of `source`. Without a source there is none.
  const BlobSource* source = nullptr;
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
  // Gets the body of an answer 2xx. Without a value, `body` gets it.
  std::optional<std::span<std::byte>> sink;

  long code = 0;            // of HTTP. 0 = there was no whole answer
  std::string failure;      // why not
  bool may_repeat = false;  // it was a failure that may pass: a time-out, a reset
  Status source_status;
  Headers answer_headers;  // the names are in lower case
  std::string body;
  size_t num_received = 0;  // in `sink`
};

class HttpClient {
 public:
  // Call it before the first client is made. kUnavailable: libcurl cannot be loaded. There must be
  // no client then.
  static Status LoadLibrary();

  explicit HttpClient(std::chrono::milliseconds timeout);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Does all of these at the same time and returns when each has an answer, or none. kAborted: the
  // caller wants it to end. kUnavailable: libcurl has no memory.
  Status Perform(std::span<Exchange* const> exchanges);

 private:
  class Connections;
  std::unique_ptr<Connections> Borrow();
  void GiveBack(std::unique_ptr<Connections> connections);

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connections>> idle_;  // guarded by mutex_
};

}  // namespace varve::internal::s3
