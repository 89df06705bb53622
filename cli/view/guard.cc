// SPDX-License-Identifier: Apache-2.0
#include "cli/view/guard.h"

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <iterator>
#include <utility>

#include "cli/view/peer.h"

namespace varve::internal::cli {
namespace {

HttpResponse Refuse(int status, const std::string& why) {
  return {.status = status, .type = "text/plain; charset=utf-8", .body = why + "\n"};
}

// Returns nullopt when there are several values, because parts of a program could then disagree
// about which one counts.
std::optional<std::string> OneHeader(const HttpRequest& request, const std::string& name) {
  const auto [begin, end] = request.headers.equal_range(name);
  if (begin == end || std::next(begin) != end) return std::nullopt;
  return begin->second;
}

bool HasHeader(const HttpRequest& request, const std::string& name) {
  return request.headers.contains(name);
}

}  // namespace

Result<std::string> MakeToken() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return Status::IOError("the system gives no random bytes for the token of the view");
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    token += digits;
  }
  return token;
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  int difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

Guard::Guard(std::string token, uint16_t port) : token_(std::move(token)), port_(port) {}

std::string Guard::url() const {
  return "http://127.0.0.1:" + std::to_string(port_) + "/" + token_ + "/";
}

bool Guard::IsOurHost(std::string_view host) const {
  const std::string port = ":" + std::to_string(port_);
  return host == "127.0.0.1" + port || host == "localhost" + port;
}

bool Guard::HasToken(std::string_view path) const {
  return path.size() >= token_.size() + 2 && path[0] == '/' && path[token_.size() + 1] == '/' &&
         EqualInConstantTime(path.substr(1, token_.size()), token_);
}

// A page that has another name for 127.0.0.1 sends that name as Host, and a page of another origin
// sends its own as Origin. Browsers say with Sec-Fetch-Site what kind of page asks.
std::string Guard::WhyNotFrom(const HttpRequest& request) const {
  const auto host = OneHeader(request, "host");
  if (!host || !IsOurHost(*host)) return "this server answers only as 127.0.0.1 or localhost";
  if (HasHeader(request, "origin")) {
    const auto origin = OneHeader(request, "origin");
    if (!origin || *origin != "http://" + *host) return "a page of another origin gets no answer";
  }
  if (HasHeader(request, "sec-fetch-site")) {
    const auto site = OneHeader(request, "sec-fetch-site");
    const bool is_link = OneHeader(request, "sec-fetch-mode") == "navigate" &&
                         request.path.size() == token_.size() + 2;
    if (!site || (*site != "same-origin" && *site != "none" && !is_link)) {
      return "a page of another site gets no answer";
    }
  }
  return "";
}

std::string Guard::MakeEntrance(std::string secret) {
  entrance_ = "/open/" + std::move(secret);
  return "http://127.0.0.1:" + std::to_string(port_) + entrance_;
}

bool Guard::IsEntrance(std::string_view path) const {
  return !entrance_.empty() && EqualInConstantTime(path, entrance_);
}

// Another user who sees the URL must not use it up either.
HttpResponse Guard::Enter(const HttpRequest& request) {
  if (UserOfClient(request.client_port, port_) != ::geteuid()) {
    return Refuse(403,
                  "this URL is for the browser of one user: use the URL that varve view has "
                  "printed");
  }
  if (was_entered_.exchange(true)) {
    return Refuse(403, "this URL was used already: use the URL that varve view has printed");
  }
  return {
      .type = "text/html; charset=utf-8",
      .body = "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url=/" + token_ + "/\">\n"};
}

Guard::Verdict Guard::Examine(const HttpRequest& request) {
  if (const std::string why = WhyNotFrom(request); !why.empty()) return {Refuse(403, why), {}};
  const bool is_entrance = IsEntrance(request.path);
  if (!is_entrance && !HasToken(request.path)) {
    return {Refuse(403,
                   "the token in the URL is missing or wrong: use the URL that varve view has "
                   "printed"),
            {}};
  }
  if (request.method != "GET") return {Refuse(405, "only GET is answered"), {}};
  if (is_entrance) return {Enter(request), {}};
  return {std::nullopt, request.path.substr(token_.size() + 2)};
}

}  // namespace varve::internal::cli
