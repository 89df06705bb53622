// SPDX-License-Identifier: Apache-2.0
#include "objects/s3/s3_request.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <thread>

#include "base/random_number.h"
#include "base/stop.h"
#include "objects/s3/xml.h"

namespace varve::internal::s3 {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{5'000};
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kMaxBucketName = 63;

std::string Now() {
  const std::time_t now = std::time(nullptr);
  struct tm utc {};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &utc)};
}

// Half of it is left to chance, so that those who failed together do not come back together.
std::chrono::milliseconds PauseAfter(int tries) {
  const auto longest = std::min(kFirstPause * (1 << std::min(tries - 1, 10)), kLongestPause);
  return longest / 2 +
         std::chrono::milliseconds(RandomNumber() % static_cast<uint64_t>(longest.count() / 2 + 1));
}

Status Sleep(std::chrono::milliseconds pause) {
  constexpr std::chrono::milliseconds kSlice{50};
  const StopFlag stop;
  const auto end = Clock::now() + pause;
  while (Clock::now() < end) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    std::this_thread::sleep_for(std::min<Clock::duration>(kSlice, end - Clock::now()));
  }
  return stop.Check();
}

bool MayRepeat(const Exchange& exchange) {
  switch (exchange.code) {
    case 0:
      return exchange.may_repeat;
    case 409:  // another creation of this object is under way
    // The gateway of Ceph says so when a part of Ceph has not answered it, and may have it later.
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    case 400:
      return XmlText(exchange.body, "Code") == "RequestTimeout";
    // S3 may answer 200 before it knows, when it completes an upload.
    default:
      return exchange.code == 200 && XmlText(exchange.body, "Code") == "InternalError";
  }
}

// Returns true if the server may have done it.
bool IsAmbiguous(const Exchange& exchange) {
  return exchange.code == 0 || exchange.code == 200 || exchange.code == 408 || exchange.code >= 500;
}

std::string Describe(long code, const std::string& body) {
  const std::string name = XmlText(body, "Code"), message = XmlText(body, "Message");
  return "the server answered " + std::to_string(code) + (name.empty() ? "" : " " + name) +
         (message.empty() ? "" : ": " + message);
}

bool HasOnly(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(), [others](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != others.npos;
  });
}

}  // namespace

Result<std::unique_ptr<Bucket>> Bucket::Open(const ObjectsUrl& url, const ObjectsOptions& options) {
  const auto bad = [&url](const std::string& why) {
    return Status::InvalidArgument(url.text + ": " + why);
  };
  for (const auto& [name, value] : url.query) {
    if (name == "endpoint" || name == "region") continue;
    return bad("s3:// knows no parameter \"" + name + "\", expected endpoint or region");
  }
  if (!HasOnly(url.place, "-.") || url.place.size() > kMaxBucketName) {
    return bad("\"" + url.place + "\" cannot be the name of a bucket");
  }
  if (!HasOnly(url.path, "-._/") || url.path.find("//") != url.path.npos ||
      ("/" + url.path + "/").find("/../") != std::string::npos ||
      ("/" + url.path + "/").find("/./") != std::string::npos) {
    return bad("the prefix \"" + url.path +
               "\" has others than the characters A-Z a-z 0-9 . _ - / "
               "or an empty part");
  }
  auto settings = FindSettings();
  if (!settings.ok()) return settings.status().WithContext(url.text);
  const Status has_library = HttpClient::LoadLibrary();
  if (!has_library.ok()) return has_library.WithContext(url.text);
  std::unique_ptr<Bucket> bucket(new Bucket(url, options));
  bucket->settings_ = *std::move(settings);
  bucket->prefix_ = url.path.empty() ? "" : url.path + "/";
  if (const auto it = url.query.find("region"); it != url.query.end()) {
    bucket->settings_.region = it->second;
  }
  std::string& region = bucket->settings_.region;
  if (region.empty()) region = "us-east-1";
  if (!HasOnly(region, "-")) return bad("\"" + region + "\" cannot be a region");
  std::string endpoint = bucket->settings_.endpoint;
  if (const auto it = url.query.find("endpoint"); it != url.query.end()) endpoint = it->second;
  if (endpoint.empty()) {
    bucket->host_ = url.place + ".s3." + region + ".amazonaws.com";
    bucket->origin_ = "https://" + bucket->host_;
    bucket->path_ = "/";
    // A certificate for *.s3.REGION.amazonaws.com does not fit a name with dots.
    if (url.place.find('.') != url.place.npos) {
      bucket->host_ = "s3." + region + ".amazonaws.com";
      bucket->origin_ = "https://" + bucket->host_;
      bucket->path_ = "/" + url.place + "/";
    }
    return bucket;
  }
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const bool is_plain = endpoint.starts_with("http://");
  if (!is_plain && !endpoint.starts_with("https://")) {
    return bad("endpoint \"" + endpoint + "\" does not start with https:// or http://");
  }
  bucket->is_encrypted_ = !is_plain;
  bucket->host_ = endpoint.substr(is_plain ? 7 : 8);
  if (bucket->host_.empty() || !HasOnly(bucket->host_, "-._:[]")) {
    return bad("endpoint \"" + endpoint + "\", expected https://HOST or https://HOST:PORT");
  }
  bucket->origin_ = endpoint;
  const std::string standard_port = is_plain ? ":80" : ":443";
  if (bucket->host_.ends_with(standard_port)) {  // the header has it only where it is another
    bucket->host_.resize(bucket->host_.size() - standard_port.size());
  }
  bucket->path_ = "/" + url.place + "/";
  return bucket;
}

std::string Bucket::Name(const Request& request) const {
  std::string name =
      url_ + ": " + request.method + " " + (request.key.empty() ? "of the bucket" : request.key);
  const std::string query = QueryText(request.query);
  return query.empty() ? name : name + "?" + query;
}

Status Bucket::Error(const Request& request, const Answer& answer) const {
  return Status::IOError(Name(request) + ": " + Describe(answer.code, answer.body));
}

// Over TLS nobody can change the bytes on their way. Otherwise they are signed, too.
Result<std::string> Bucket::PayloadOf(const Request& request) const {
  if (is_encrypted_ && request.num_bytes > 0) return std::string("UNSIGNED-PAYLOAD");
  Sha256 sha;
  std::vector<std::byte> block(std::min<uint64_t>(kBlockBytes, request.num_bytes));
  for (uint64_t at = 0; at < request.num_bytes; at += block.size()) {
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    block.resize(std::min<uint64_t>(kBlockBytes, request.num_bytes - at));
    VARVE_RETURN_IF_ERROR(request.source->Read(request.offset + at, block));
    sha.Add(block);
  }
  return sha.FinishHex();
}

Status Bucket::Prepare(const Request& request, const std::string& payload,
                       Exchange* exchange) const {
  *exchange = Exchange();
  exchange->method = request.method;
  const std::string path = request.key.empty()
                               ? (path_.size() > 1 ? path_.substr(0, path_.size() - 1) : path_)
                               : path_ + prefix_ + request.key;
  const std::string query = QueryText(request.query);
  exchange->url = origin_ + path + (query.empty() ? "" : "?" + query);
  exchange->source = request.source;
  exchange->offset = request.offset;
  exchange->num_bytes = request.num_bytes;
  exchange->sink = request.sink;
  exchange->headers = request.headers;
  const std::string now = Now();
  exchange->headers["host"] = host_;
  exchange->headers["x-amz-date"] = now;
  exchange->headers["x-amz-content-sha256"] = payload;
  if (!settings_.credentials.session_token.empty()) {
    exchange->headers["x-amz-security-token"] = settings_.credentials.session_token;
  }
  exchange->headers["authorization"] =
      Authorization({request.method, path, request.query, exchange->headers}, settings_.credentials,
                    settings_.region, now);
  return Status::Ok();
}

Result<std::vector<Answer>> Bucket::Send(std::span<const Request> requests) {
  std::vector<Answer> answers(requests.size());
  std::vector<std::string> payloads(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    VARVE_ASSIGN_OR_RETURN(payloads[i], PayloadOf(requests[i]));
  }
  std::vector<size_t> open(requests.size());
  for (size_t i = 0; i < open.size(); ++i) open[i] = i;
  const auto end = Clock::now() + options_.retry_for;
  for (int tries = 1;; ++tries) {
    std::vector<Exchange> exchanges(open.size());
    std::vector<Exchange*> pointers;
    for (size_t i = 0; i < open.size(); ++i) {
      VARVE_RETURN_IF_ERROR(Prepare(requests[open[i]], payloads[open[i]], &exchanges[i]));
      pointers.push_back(&exchanges[i]);
    }
    VARVE_RETURN_IF_ERROR(client_.Perform(pointers));
    std::vector<size_t> again;
    Status last;
    for (size_t i = 0; i < open.size(); ++i) {
      const Request& request = requests[open[i]];
      Exchange& exchange = exchanges[i];
      Answer& answer = answers[open[i]];
      VARVE_RETURN_IF_ERROR(exchange.source_status);
      const std::string what =
          exchange.code == 0 ? exchange.failure : Describe(exchange.code, exchange.body);
      if (MayRepeat(exchange)) {
        answer.is_ambiguous = answer.is_ambiguous || IsAmbiguous(exchange);
        again.push_back(open[i]);
        last =
            Status::Unavailable(Name(request) + ": outcome unknown after " + std::to_string(tries) +
                                (tries == 1 ? " try: " : " tries: ") + what);
        continue;
      }
      if (exchange.code == 0) return Status::IOError(Name(request) + ": " + what);
      answer.code = exchange.code;
      answer.headers = std::move(exchange.answer_headers);
      answer.body = std::move(exchange.body);
      answer.num_received = exchange.num_received;
    }
    if (again.empty()) return answers;
    const auto pause = PauseAfter(tries);
    if (Clock::now() + pause > end) return last;
    VARVE_RETURN_IF_ERROR(Sleep(pause));
    open = std::move(again);
  }
}

Result<Answer> Bucket::Send(const Request& request) {
  VARVE_ASSIGN_OR_RETURN(auto answers, Send(std::span(&request, 1)));
  return std::move(answers[0]);
}

}  // namespace varve::internal::s3
