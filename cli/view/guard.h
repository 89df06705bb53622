// SPDX-License-Identifier: Apache-2.0
//
// Who gets an answer: the browser that was given the URL, and nobody else. Other users of the
// machine can reach the port, and so can every page that the same browser shows.
//
//   VARVE_ASSIGN_OR_RETURN(const std::string token, MakeToken());
//   Guard guard(token, port);
//   Guard::Verdict verdict = guard.Examine(request);
//   if (verdict.response) return *std::move(verdict.response);
//   ...                                               // verdict.path is what was asked for
//
// Thread rule: any thread, once made.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/view/http_server.h"
#include "varve/result.h"

namespace varve::internal::cli {

// Returns 128 random bits as 32 hexadecimal digits. kIOError: the system gives none.
Result<std::string> MakeToken();

// Compares in a time that says nothing about where two texts of equal length differ.
bool EqualInConstantTime(std::string_view a, std::string_view b);

class Guard {
 public:
  Guard(std::string token, uint16_t port);

  struct Verdict {
    std::optional<HttpResponse> response;  // a refusal, or the way from the entrance to the page
    std::string path;  // behind the token, such as "api/runs". Empty = the page itself
  };

  // A request must be a GET, name this server as Host, come from no page of another origin, and
  // have a path that starts with the token. Only a link to the page itself may lie elsewhere, such
  // as in a terminal that is itself a web page.
  Verdict Examine(const HttpRequest& request);

  std::string url() const;

  // Returns a URL that leads to the page once, for programs of this user alone. Every user can see
  // the arguments of a program, so a browser is started with this one. Call it once, before Run.
  std::string MakeEntrance(std::string secret);

 private:
  bool IsOurHost(std::string_view host) const;
  bool HasToken(std::string_view path) const;
  std::string WhyNotFrom(const HttpRequest& request) const;
  bool IsEntrance(std::string_view path) const;
  HttpResponse Enter(const HttpRequest& request);

  const std::string token_;
  const uint16_t port_;
  std::string entrance_;  // its path. Empty = there is none
  std::atomic<bool> was_entered_{false};
};

}  // namespace varve::internal::cli
