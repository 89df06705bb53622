// SPDX-License-Identifier: Apache-2.0
#include "objects/s3/http.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "base/stop.h"
#include "objects/s3/libcurl.h"

namespace varve::internal::s3 {

namespace {

constexpr size_t kMaxBodyBytes = size_t{16} << 20;
constexpr size_t kMaxIdle = 16;
constexpr int kPollMs = 100;  // how soon a call learns that it shall end

// Set once, and never destroyed. A client that lives longer than main still needs it.
std::atomic<const Libcurl*> loaded_curl{nullptr};

// There is a client, so libcurl is loaded.
const Libcurl& Curl() { return *loaded_curl; }

bool MayPass(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

// One exchange while it is under way.
class Transfer {
 public:
  explicit Transfer(Exchange* exchange) : exchange_(exchange), easy_(Curl().easy_init()) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() {
    Curl().slist_free_all(headers_);
    if (easy_ != nullptr) Curl().easy_cleanup(easy_);
  }

  CURL* easy() const { return easy_; }
  Exchange* exchange() const { return exchange_; }

  bool Prepare(std::chrono::milliseconds timeout) {
    if (easy_ == nullptr) return false;
    for (const auto& [name, value] : exchange_->headers) {
      if (name == "host") continue;  // libcurl sends it, from the URL
      if (!AddHeader(name + ": " + value)) return false;
    }
    if (!AddHeader("Expect:") || !AddHeader("Content-Type:")) return false;  // sends neither
    const long seconds = std::max<long>(1, static_cast<long>(timeout.count() + 999) / 1000);
    Set(CURLOPT_URL, exchange_->url.c_str());
    Set(CURLOPT_PROTOCOLS_STR, "http,https");
    Set(CURLOPT_CUSTOMREQUEST, exchange_->method.c_str());
    Set(CURLOPT_HTTPHEADER, headers_);
    Set(CURLOPT_PATH_AS_IS, 1L);
    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_NOPROGRESS, 1L);
    Set(CURLOPT_CONNECTTIMEOUT, seconds);
    Set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    Set(CURLOPT_LOW_SPEED_TIME, seconds);
    Set(CURLOPT_BUFFERSIZE, 256L << 10);
    Set(CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
    Set(CURLOPT_ERRORBUFFER, error_);
    Set(CURLOPT_PRIVATE, this);
    if (const char* file = std::getenv("AWS_CA_BUNDLE"); file != nullptr && *file != '\0') {
      Set(CURLOPT_CAINFO, file);
    }
    if (exchange_->source != nullptr) {
      Set(CURLOPT_UPLOAD, 1L);
      Set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(exchange_->num_bytes));
      Set(CURLOPT_READFUNCTION, Read);
      Set(CURLOPT_READDATA, this);
      Set(CURLOPT_SEEKFUNCTION, Seek);
      Set(CURLOPT_SEEKDATA, this);
    }
    Set(CURLOPT_WRITEFUNCTION, Write);
    Set(CURLOPT_WRITEDATA, this);
    Set(CURLOPT_HEADERFUNCTION, Header);
    Set(CURLOPT_HEADERDATA, this);
    return set_;
  }

  void Finish(CURLcode code) {
    if (code == CURLE_OK) {
      Curl().easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &exchange_->code);
      if (exchange_->code == 0) exchange_->failure = "the answer has no status";
      return;
    }
    exchange_->code = 0;
    exchange_->may_repeat = MayPass(code) && !too_large_;
    exchange_->failure = too_large_       ? "the answer is longer than what was asked for"
                         : error_[0] != 0 ? error_
                                          : Curl().easy_strerror(code);
  }

 private:
  template <typename T>
  void Set(CURLoption option, T value) {
    set_ = set_ && Curl().easy_setopt(easy_, option, value) == CURLE_OK;
  }

  bool AddHeader(const std::string& line) {
    curl_slist* const longer = Curl().slist_append(headers_, line.c_str());
    if (longer != nullptr) headers_ = longer;
    return longer != nullptr;
  }

  static size_t Read(char* out, size_t size, size_t count, void* self) {
    auto* const transfer = static_cast<Transfer*>(self);
    Exchange& exchange = *transfer->exchange_;
    const size_t n = std::min<uint64_t>(size * count, exchange.num_bytes - transfer->num_sent_);
    exchange.source_status = exchange.source->Read(exchange.offset + transfer->num_sent_,
                                                   {reinterpret_cast<std::byte*>(out), n});
    if (!exchange.source_status.ok()) return CURL_READFUNC_ABORT;
    transfer->num_sent_ += n;
    return n;
  }

  // libcurl sends the body again when a kept connection turns out to be closed.
  static int Seek(void* self, curl_off_t offset, int origin) {
    if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
    static_cast<Transfer*>(self)->num_sent_ = static_cast<uint64_t>(offset);
    return CURL_SEEKFUNC_OK;
  }

  static size_t Write(char* data, size_t size, size_t count, void* self) {
    auto* const transfer = static_cast<Transfer*>(self);
    Exchange& exchange = *transfer->exchange_;
    const size_t n = size * count;
    long code = 0;
    Curl().easy_getinfo(transfer->easy_, CURLINFO_RESPONSE_CODE, &code);
    const bool is_for_sink = exchange.sink.has_value() && code >= 200 && code < 300;
    const size_t room = is_for_sink ? exchange.sink->size() - exchange.num_received
                                    : kMaxBodyBytes - exchange.body.size();
    transfer->too_large_ = n > room;
    if (transfer->too_large_) return 0;
    if (is_for_sink) {
      std::memcpy(exchange.sink->data() + exchange.num_received, data, n);
      exchange.num_received += n;
    } else {
      exchange.body.append(data, n);
    }
    return n;
  }

  static size_t Header(char* data, size_t size, size_t count, void* self) {
    Exchange& exchange = *static_cast<Transfer*>(self)->exchange_;
    std::string_view line(data, size * count);
    if (line.starts_with("HTTP/")) exchange.answer_headers.clear();  // of an earlier answer
    const size_t colon = line.find(':');
    if (colon == line.npos) return line.size();
    std::string name;
    for (const char c : line.substr(0, colon)) {
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t'))
      value.remove_prefix(1);
    while (!value.empty() &&
           (value.back() == '\n' || value.back() == '\r' || value.back() == ' ')) {
      value.remove_suffix(1);
    }
    exchange.answer_headers[name] = value;
    return line.size();
  }

  Exchange* const exchange_;
  CURL* const easy_;
  curl_slist* headers_ = nullptr;
  char error_[CURL_ERROR_SIZE] = {};
  uint64_t num_sent_ = 0;
  bool too_large_ = false;
  bool set_ = true;
};

}  // namespace

// A multi handle of libcurl, which keeps connections. One thread at a time.
class HttpClient::Connections {
 public:
  Connections() : multi_(Curl().multi_init()) {}
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;
  ~Connections() {
    if (multi_ != nullptr) Curl().multi_cleanup(multi_);
  }

  Status Perform(std::span<Exchange* const> exchanges, std::chrono::milliseconds timeout) {
    std::vector<std::unique_ptr<Transfer>> transfers;
    Status status;
    for (Exchange* exchange : exchanges) {
      transfers.push_back(std::make_unique<Transfer>(exchange));
      Transfer& transfer = *transfers.back();
      bool is_added = multi_ != nullptr && transfer.Prepare(timeout);
      if (is_added) sockets_.UseIn(transfer.easy());
      is_added = is_added && Curl().multi_add_handle(multi_, transfer.easy()) == CURLM_OK;
      if (is_added) continue;
      transfers.pop_back();
      status = Status::Unavailable("libcurl could not prepare a request");
      break;
    }
    if (status.ok()) status = Run();
    for (const auto& transfer : transfers) Curl().multi_remove_handle(multi_, transfer->easy());
    return status;
  }

 private:
  // The open connections of a multi handle.
  class Sockets {
   public:
    void UseIn(CURL* easy) {
      Curl().easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, Open);
      Curl().easy_setopt(easy, CURLOPT_OPENSOCKETDATA, this);
      Curl().easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, Close);
      Curl().easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, this);
    }

    // Confirms now what has arrived. Some servers send the head of an answer alone, and its body
    // only when the head is confirmed (Nagle's algorithm). The system would wait 40 ms for that.
    void Acknowledge() const {
      const int on = 1;
      for (const curl_socket_t each : open_) {
        ::setsockopt(each, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
      }
    }

   private:
    static curl_socket_t Open(void* self, curlsocktype, curl_sockaddr* address) {
      const int opened =
          ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
      if (opened < 0) return CURL_SOCKET_BAD;
      static_cast<Sockets*>(self)->open_.push_back(opened);
      return opened;
    }
    static int Close(void* self, curl_socket_t closed) {
      std::erase(static_cast<Sockets*>(self)->open_, closed);
      return ::close(closed);
    }

    std::vector<curl_socket_t> open_;
  };

  Status Run() {
    const StopFlag stop;
    for (int running = 1; running > 0;) {
      VARVE_RETURN_IF_ERROR(stop.Check());
      const CURLMcode code = Curl().multi_perform(multi_, &running);
      sockets_.Acknowledge();
      int left = 0;
      while (const CURLMsg* message = Curl().multi_info_read(multi_, &left)) {
        if (message->msg != CURLMSG_DONE) continue;
        const CURLcode result = message->data.result;
        char* transfer = nullptr;
        Curl().easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
        reinterpret_cast<Transfer*>(transfer)->Finish(result);
      }
      const CURLMcode waited =
          running > 0 ? Curl().multi_poll(multi_, nullptr, 0, kPollMs, nullptr) : CURLM_OK;
      for (const CURLMcode each : {code, waited}) {
        if (each != CURLM_OK) return Status::Unavailable(Curl().multi_strerror(each));
      }
    }
    return Status::Ok();
  }

  Sockets sockets_;  // outlives the handle
  CURLM* const multi_;
};

Status HttpClient::LoadLibrary() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (loaded_curl != nullptr) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const Libcurl curl, LoadLibcurl());
  const CURLcode started = curl.global_init(CURL_GLOBAL_DEFAULT);
  if (started != CURLE_OK) {
    return Status::Unavailable("libcurl cannot be started: " +
                               std::string(curl.easy_strerror(started)));
  }
  loaded_curl = new Libcurl(curl);
  return Status::Ok();
}

HttpClient::HttpClient(std::chrono::milliseconds timeout) : timeout_(timeout) {}

HttpClient::~HttpClient() = default;

std::unique_ptr<HttpClient::Connections> HttpClient::Borrow() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto connections = std::move(idle_.back());
      idle_.pop_back();
      return connections;
    }
  }
  return std::make_unique<Connections>();
}

void HttpClient::GiveBack(std::unique_ptr<Connections> connections) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connections));
}

Status HttpClient::Perform(std::span<Exchange* const> exchanges) {
  auto connections = Borrow();
  Status status = connections->Perform(exchanges, timeout_);
  if (status.ok()) GiveBack(std::move(connections));
  return status;
}

}  // namespace varve::internal::s3
