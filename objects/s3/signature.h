// SPDX-License-Identifier: Apache-2.0
//
// Signature Version 4 of AWS, by which a request of S3 proves whose it is. Functions are stateless.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace varve::internal::s3 {

struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // empty = none
};

// Names in lower case. Values without spaces at their ends.
using Headers = std::map<std::string, std::string>;
// Not encoded.
using Query = std::map<std::string, std::string>;

struct SignedRequest {
  std::string_view method;
  std::string_view path;  // encoded, as it is sent
  const Query& query;
  const Headers& headers;  // with host, x-amz-date and x-amz-content-sha256. All are signed
};

// SHA-256 in lower hexadecimal digits.
std::string Sha256Hex(std::span<const std::byte> bytes);

// The same of bytes that come in pieces. Thread rule: one thread at a time.
class Sha256 {
 public:
  Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256();
  void Add(std::span<const std::byte> bytes);
  std::string FinishHex();

 private:
  void* const context_;  // of OpenSSL
};

// Percent-encodes everything but A-Z a-z 0-9 - . _ ~.
std::string UriEncode(std::string_view text);
// Returns "a=1&b=2" in the order that is signed. An empty value keeps its "=".
std::string QueryText(const Query& query);

// Returns the value of the header Authorization. `time` is that of x-amz-date: 20130524T000000Z.
std::string Authorization(const SignedRequest& request, const Credentials& credentials,
                          std::string_view region, std::string_view time);

}  // namespace varve::internal::s3
