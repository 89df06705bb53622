// SPDX-License-Identifier: Apache-2.0
//
// Answers HTTP requests on the loopback interface. What an answer is, and who gets one, others
// decide.
//
//   VARVE_ASSIGN_OR_RETURN(auto server, HttpServer::Bind(/*port=*/0, answer));
//   std::thread thread([&] {
//     if (server->StartThreads().ok()) server->Run().IgnoreError();
//   });
//   ...                                                  // server->port() is known
//   server->Stop();
//   thread.join();
//
// Thread rule: any thread may call Stop. `answer` is called by several threads at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "varve/result.h"
#include "varve/status.h"

namespace varve::internal::cli {

struct HttpRequest {
  std::string method;
  std::string path;  // decoded, without what follows '?'
  std::multimap<std::string, std::string> parameters;
  std::multimap<std::string, std::string> headers;  // by names in small letters
  uint16_t client_port = 0;
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body;
};

class HttpServer {
 public:
  using Answer = std::function<HttpResponse(const HttpRequest&)>;

  virtual ~HttpServer() = default;

  // Takes a port of 127.0.0.1. 0 = any free one. kUnavailable: the port is in use.
  // kIOError: the process has too few descriptors left for connections. kFailedPrecondition: this
  // build of varve has no server.
  static Result<std::unique_ptr<HttpServer>> Bind(uint16_t port, Answer answer);

  virtual uint16_t port() const = 0;
  // Starts the threads that answer, with the priority of the caller. Call it once, before Run.
  // kUnavailable: the system gives no thread. With fewer threads than wanted, answers wait.
  virtual Status StartThreads() = 0;
  // Answers until Stop. Returns when the last request has been answered. Call it once.
  // kUnavailable: the server ended before Stop, as when memory ran out.
  virtual Status Run() = 0;
  // Ends Run, which some thread has called or will call.
  virtual void Stop() = 0;
};

}  // namespace varve::internal::cli
