// SPDX-License-Identifier: Apache-2.0
//
// The only file that knows cpp-httplib.
#include "cli/view/http_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "base/guarded.h"
#include "cli/view/connection.h"

namespace varve::internal::cli {
namespace {

// A browser keeps up to six connections open, and each holds a thread while it is open.
constexpr size_t kNumThreads = 64;
// Connections that wait for a thread. With more, nobody is let in, so that descriptors are left.
constexpr size_t kMaxWaiting = 128;
constexpr size_t kMaxRequestsOfConnection = 1000;
// Of a browser, and of what the store opens for an answer.
constexpr size_t kLeastDescriptors = 16;

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

// The library reads and writes a connection through this. Its own reads lines of any length, for
// any time. Newer versions of the library want functions that older ones do not know.
class BoundedStream : public httplib::Stream {
 public:
  explicit BoundedStream(Connection* connection) : connection_(connection) {}

  bool is_readable() const override { return connection_->has_unread(); }
  bool is_writable() const override { return connection_->AwaitWritable(); }
  bool wait_readable() const { return true; }  // read waits
  bool wait_writable() const { return connection_->AwaitWritable(); }
  time_t duration() const { return 0; }
  ssize_t read(char* to, size_t size) override { return connection_->Read(to, size); }
  ssize_t write(const char* from, size_t size) override { return connection_->Write(from, size); }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    GetAddress(::getpeername, &ip, &port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    GetAddress(::getsockname, &ip, &port);
  }
  socket_t socket() const override { return connection_->socket(); }

 private:
  void GetAddress(int (*get)(int, sockaddr*, socklen_t*), std::string* ip, int* port) const {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    if (get(socket(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
    char text[INET_ADDRSTRLEN] = "";
    if (address.sin_family != AF_INET) return;
    *ip = ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)) != nullptr ? text : "";
    *port = ntohs(address.sin_port);
  }

  Connection* const connection_;
};

// The threads that answer. The library's own pool ends the program if it gets only some of its
// threads.
class Workers : public httplib::TaskQueue {
 public:
  // `failed` gets the error of each job that throws, from any of the threads.
  explicit Workers(std::function<void(Status)> failed) : failed_(std::move(failed)) {}
  ~Workers() override { Workers::shutdown(); }

  // Starts as many threads as the system gives, up to `count`. An error says that it gave none.
  Status Start(size_t count) {
    const Status last = Guarded("starting a thread that answers", [&] {
      while (threads_.size() < count) threads_.emplace_back([this] { Work(); });
      return Status::Ok();
    });
    return threads_.empty() ? last : Status::Ok();  // fewer of them do as well
  }

  // Newer versions of the library want to hear that the job was taken.
  using Taken = decltype(std::declval<httplib::TaskQueue>().enqueue(nullptr));
  Taken enqueue(std::function<void()> job) override {
    {
      std::unique_lock lock(mutex_);
      has_room_.wait(lock, [this] { return is_ended_ || jobs_.size() < kMaxWaiting; });
      jobs_.push_back(std::move(job));
      num_waiting_ = jobs_.size();
    }
    changed_.notify_one();
    return Taken(true);
  }

  bool has_waiting() const { return num_waiting_ > 0; }

  // Waits until all jobs are done.
  void shutdown() override {
    {
      const std::scoped_lock lock(mutex_);
      is_ended_ = true;
    }
    changed_.notify_all();
    has_room_.notify_all();
    threads_.clear();
  }

 private:
  void Work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_ended_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      num_waiting_ = jobs_.size();
      lock.unlock();
      has_room_.notify_one();
      Status done = Guarded("answering", [&job] {
        job();
        return Status::Ok();
      });
      if (!done.ok()) failed_(std::move(done));
    }
  }

  const std::function<void(Status)> failed_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::condition_variable has_room_;
  std::deque<std::function<void()>> jobs_;
  bool is_ended_ = false;
  std::atomic<size_t> num_waiting_{0};  // the size of jobs_, without the mutex
  std::vector<std::jthread> threads_;   // not guarded: the owner's
};

// The library's server, with connections whose bytes and time are bounded.
class BoundedServer : public httplib::Server {
 public:
  // Whether somebody waits for a thread, or the server ends.
  std::function<bool()> in_haste = [] { return false; };

 private:
  bool process_and_close_socket(socket_t socket) override {
    const CloseAtEnd close(socket);
    Connection connection(socket, {}, in_haste);
    BoundedStream stream(&connection);
    bool is_answered = false;
    for (size_t left = keep_alive_max_count_; left > 0 && connection.AwaitRequest(); --left) {
      const bool is_last = left == 1 || in_haste();
      bool is_closed = false;
      is_answered = Answer(*this, stream, is_last, &is_closed);
      if (!is_answered || is_closed || is_last) break;
    }
    return is_answered;
  }

  class CloseAtEnd {
   public:
    explicit CloseAtEnd(int socket) : socket_(socket) {}
    ~CloseAtEnd() { ::shutdown(socket_.get(), SHUT_RDWR); }
    CloseAtEnd(const CloseAtEnd&) = delete;
    CloseAtEnd& operator=(const CloseAtEnd&) = delete;

   private:
    FileDescriptor socket_;
  };

  // Newer versions of the library want the addresses of the connection, too.
  template <class Self>
  static bool Answer(Self& self, BoundedStream& stream, bool is_last, bool* is_closed) {
    if constexpr (requires { self.process_request(stream, is_last, *is_closed, nullptr); }) {
      return self.process_request(stream, is_last, *is_closed, nullptr);
    } else {
      std::string client, server;
      int client_port = 0, server_port = 0;
      stream.get_remote_ip_and_port(client, client_port);
      stream.get_local_ip_and_port(server, server_port);
      return self.process_request(stream, client, client_port, server, server_port, is_last,
                                  *is_closed, nullptr);
    }
  }
};

class LibraryServer : public HttpServer {
 public:
  explicit LibraryServer(Answer answer)
      : answer_(std::move(answer)),
        workers_(std::make_unique<Workers>([this](Status why) { EndBy(std::move(why)); })) {
    server_.new_task_queue = [this] { return workers_.release(); };
    server_.in_haste = [this, workers = workers_.get()] {
      return is_stopped_ || workers->has_waiting();
    };
    server_.set_keep_alive_timeout(1);  // is told to clients. Connection::Limits says what counts
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
  Status StartThreads() override { return workers_->Start(kNumThreads); }
  Status Run() override {
    Status run = Guarded("answering requests", [this] {
      if (server_.listen_after_bind()) return Status::Ok();
      return Status::Unavailable("port " + std::to_string(port_) +
                                 " of 127.0.0.1 takes no more connections: start it again");
    });
    has_ended_ = true;
    const std::scoped_lock lock(mutex_);
    return std::move(failure_.ok() ? run : failure_);
  }
  void Stop() override {
    is_stopped_ = true;
    // A stop before the start would be lost.
    while (!server_.is_running() && !has_ended_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    server_.stop();
  }

 private:
  // The library has lost a connection and does not close it, as when memory runs out. Who asked
  // would wait until the server ends.
  void EndBy(Status failure) {
    {
      const std::scoped_lock lock(mutex_);
      if (failure_.ok()) failure_ = std::move(failure);
    }
    is_stopped_ = true;
    server_.stop();
  }

  const Answer answer_;
  std::unique_ptr<Workers> workers_;  // until Run, which gives them to the library
  BoundedServer server_;
  std::mutex mutex_;
  Status failure_;  // guarded by mutex_: of the first job that threw
  std::atomic<bool> is_stopped_{false};
  std::atomic<bool> has_ended_{false};
  uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Bind(uint16_t port, Answer answer) {
  auto server = std::make_unique<LibraryServer>(std::move(answer));
  VARVE_RETURN_IF_ERROR(server->BindTo(port));
  // The library waits for a descriptor without end. Who asks would wait, too.
  if (const auto reserved = ReserveDescriptors(kLeastDescriptors); !reserved.ok()) {
    return Status::IOError("a view needs " + std::to_string(kLeastDescriptors) +
                           " descriptors for its connections: " + reserved.status().message() +
                           ". Raise the limit (ulimit -n)");
  }
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace varve::internal::cli
