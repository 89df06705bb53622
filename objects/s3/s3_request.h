// SPDX-License-Identifier: Apache-2.0
//
// Signed requests to one bucket, repeated while that may help.
#pragma once

#include <string>

#include "objects/s3/credentials.h"
#include "objects/s3/http.h"
#include "objects/url.h"

namespace varve::internal::s3 {

struct Request {
  std::string method;
  std::string key;  // of the object, below the prefix. Empty = the bucket
  Query query;
  Headers headers;
  const BlobSource* source = nullptr;  // of the body
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
  std::optional<std::span<std::byte>> sink;
};

struct Answer {
  long code = 0;
  Headers headers;
  std::string body;
  size_t num_received = 0;  // in the sink
  // An earlier try of this request had no answer, or one that does not say whether it was done.
  bool is_ambiguous = false;
};

// Thread rule: any thread.
class Bucket {
 public:
  static Result<std::unique_ptr<Bucket>> Open(const ObjectsUrl& url, const ObjectsOptions& options);

  // Does all of these, several at a time. Any answer is returned that repeating the request would
  // not change. kUnavailable: the server did not answer, or said for too long that it cannot.
  Result<std::vector<Answer>> Send(std::span<const Request> requests);
  Result<Answer> Send(const Request& request);

  // The error that an answer is, with the URL and the request. Precondition: it is one.
  Status Error(const Request& request, const Answer& answer) const;

  const std::string& prefix() const { return prefix_; }  // empty, or with "/" at its end

 private:
  Bucket(const ObjectsUrl& url, const ObjectsOptions& options)
      : url_(url.text), options_(options), client_(options.timeout) {}
  Status Prepare(const Request& request, const std::string& payload, Exchange* exchange) const;
  Result<std::string> PayloadOf(const Request& request) const;
  std::string Name(const Request& request) const;

  const std::string url_;
  const ObjectsOptions options_;
  HttpClient client_;
  Settings settings_;
  std::string origin_;  // https://HOST:PORT
  std::string host_;    // as the header has it
  std::string path_;    // of the bucket, with "/" at its end
  std::string prefix_;
  bool is_encrypted_ = true;
};

}  // namespace varve::internal::s3
