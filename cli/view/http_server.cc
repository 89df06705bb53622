// SPDX-License-Identifier: Apache-2.0
//
// The only file that knows cpp-httplib.
#include "cli/view/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <thread>
#include <utility>

namespace varve::internal::cli {
namespace {

// A browser keeps up to six connections open, and each holds a thread while it is open.
constexpr size_t kNumThreads = 64;
// How long an idle connection, or one whose request does not go on, keeps its thread. The end of
// the server waits for it.
constexpr time_t kIdleSeconds = 1;
constexpr size_t kMaxRequestsOfConnection = 1000;

// The page needs nothing from elsewhere, and nobody needs it inside of another page.
const httplib::Headers& HeadersOfAll() {
  static const httplib::Headers headers = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
       "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cache-Control", "no-store"},
  };
  return headers;
}

HttpRequest FromLibrary(const httplib::Request& from) {
  HttpRequest request{.method = from.method,
                      .path = from.path,
                      .client_port = static_cast<uint16_t>(from.remote_port)};
  request.parameters.insert(from.params.begin(), from.params.end());
  for (const auto& [name, value] : from.headers) {
    std::string small = name;
    std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
    request.headers.emplace(std::move(small), value);
  }
  return request;
}

// A body that comes from a provider is sent as it is. A plain one would be compressed with brotli
// at its highest effort, which takes seconds. The library hands on what a Range header asks for,
// even if the body is shorter.
void ToLibrary(HttpResponse from, httplib::Response* to) {
  to->status = from.status;
  if (from.body.empty()) return;
  const size_t size = from.body.size();
  to->set_content_provider(
      size, from.type,
      [body = std::move(from.body)](size_t offset, size_t length, httplib::DataSink& sink) {
        if (offset > body.size()) return false;
        return sink.write(body.data() + offset, std::min(length, body.size() - offset));
      });
}

class LibraryServer : public HttpServer {
 public:
  explicit LibraryServer(Answer answer) : answer_(std::move(answer)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kNumThreads); };
    server_.set_keep_alive_timeout(kIdleSeconds);
    server_.set_read_timeout(kIdleSeconds);
    server_.set_keep_alive_max_count(kMaxRequestsOfConnection);
    server_.set_payload_max_length(0);
    server_.set_tcp_nodelay(true);
    server_.set_default_headers(HeadersOfAll());
    // The library would share the port with other servers of the user.
    server_.set_socket_options([](int socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server_.set_pre_routing_handler([this](const httplib::Request& from, httplib::Response& to) {
      // The page asks for whole answers. A part of a refusal would need a token, too.
      ToLibrary(from.has_header("Range") ? HttpResponse{.status = 416} : answer_(FromLibrary(from)),
                &to);
      // What follows an answer that was not asked for politely may be a body that nobody reads.
      if (to.status >= 400) to.set_header("Connection", "close");
      return httplib::Server::HandlerResponse::Handled;
    });
    server_.set_exception_handler(
        [](const httplib::Request&, httplib::Response& to, const std::exception_ptr&) {
          ToLibrary({.status = 500, .body = R"({"error":"an exception, as when memory runs out"})"},
                    &to);
        });
  }

  Status BindTo(uint16_t port) {
    if (port == 0) {
      const int found = server_.bind_to_any_port("127.0.0.1");
      if (found <= 0) return Status::Unavailable("127.0.0.1 has no free port");
      port_ = static_cast<uint16_t>(found);
      return Status::Ok();
    }
    if (!server_.bind_to_port("127.0.0.1", port)) {
      return Status::Unavailable("port " + std::to_string(port) +
                                 " of 127.0.0.1 is in use or not allowed: give another --port, or "
                                 "none for any free one");
    }
    port_ = port;
    return Status::Ok();
  }

  uint16_t port() const override { return port_; }
  void Run() override {
    server_.listen_after_bind();
    has_ended_ = true;
  }
  void Stop() override {
    // A stop before the start would be lost.
    while (!server_.is_running() && !has_ended_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    server_.stop();
  }

 private:
  const Answer answer_;
  httplib::Server server_;
  std::atomic<bool> has_ended_{false};
  uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Bind(uint16_t port, Answer answer) {
  auto server = std::make_unique<LibraryServer>(std::move(answer));
  VARVE_RETURN_IF_ERROR(server->BindTo(port));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace varve::internal::cli
