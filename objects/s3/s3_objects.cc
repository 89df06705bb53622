// SPDX-License-Identifier: Apache-2.0
#include "objects/s3/s3_objects.h"

#include <algorithm>
#include <charconv>
#include <mutex>

#include "base/run_parallel.h"
#include "base/util.h"
#include "objects/s3/s3_request.h"
#include "objects/s3/xml.h"

namespace varve::internal {

namespace {

using s3::Answer;
using s3::Bucket;
using s3::Query;
using s3::Request;
using s3::XmlElements;
using s3::XmlText;

constexpr uint64_t kSinglePutBytes = uint64_t{64} << 20;
constexpr uint64_t kPartBytes = uint64_t{16} << 20;
constexpr uint64_t kMaxParts = 10'000;
constexpr char kBlobs[] = "blobs/";
constexpr char kRecords[] = "records/";
constexpr char kProbe[] = "probe";

bool IsDone(const Answer& answer) { return answer.code >= 200 && answer.code < 300; }
bool IsAbsent(const Answer& answer) {
  return answer.code == 404 && XmlText(answer.body, "Code") == "NoSuchKey";
}

uint64_t ToNumber(std::string_view text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

const MemorySource& NoBytes() {
  static const MemorySource none({});
  return none;
}

class S3Objects : public Objects {
 public:
  S3Objects(std::string url, std::unique_ptr<Bucket> bucket, const ObjectsOptions& options)
      : Objects(std::move(url)), options_(options), bucket_(std::move(bucket)) {}

 protected:
  Status DoPutBlob(const std::string& name, const BlobSource& source) override {
    const std::string key = kBlobs + name;
    if (source.size() > kSinglePutBytes) return PutInParts(key, source);
    VARVE_RETURN_IF_ERROR(source.Check());
    const Request request{
        .method = "PUT", .key = key, .source = &source, .num_bytes = source.size()};
    VARVE_ASSIGN_OR_RETURN(const Answer answer, bucket_->Send(request));
    return IsDone(answer) ? Status::Ok() : bucket_->Error(request, answer);
  }

  Result<std::optional<size_t>> DoGetBlob(const std::string& name, uint64_t offset,
                                          std::span<std::byte> out) const override {
    std::byte byte{};
    const std::span<std::byte> sink = out.empty() ? std::span(&byte, 1) : out;
    const std::string first = "bytes=" + std::to_string(offset) + "-";
    const Request request{.method = "GET",
                          .key = kBlobs + name,
                          .headers = {{"range", first + std::to_string(offset + sink.size() - 1)}},
                          .sink = sink};
    VARVE_ASSIGN_OR_RETURN(const Answer answer, bucket_->Send(request));
    if (IsAbsent(answer)) return std::optional<size_t>();
    if (answer.code == 416) return std::optional<size_t>(0);  // it ends before
    if (!IsDone(answer)) return bucket_->Error(request, answer);
    const auto range = answer.headers.find("content-range");
    const bool is_range = answer.code == 206 && range != answer.headers.end() &&
                          range->second.starts_with("bytes " + std::to_string(offset) + "-");
    if (!is_range && offset != 0) {
      return Status::IOError(url() + ": GET " + request.key +
                             ": the server gave other bytes than " + first +
                             ", it cannot read ranges");
    }
    return std::optional<size_t>(out.empty() ? 0 : answer.num_received);
  }

  Status DoRemoveBlob(const std::string& name) override {
    const std::string key = kBlobs + name;
    VARVE_RETURN_IF_ERROR(Remove(key));
    return VisitUploads(key, [&](const std::string& found, const std::string& upload) {
      return found == key ? AbortUpload(key, upload) : Status::Ok();
    });
  }

  Status DoListBlobs(const VisitBlob& visit) const override {
    VARVE_RETURN_IF_ERROR(
        Visit(kBlobs, "", options_.list_page,
              [&](const std::string& key, uint64_t bytes) -> Result<bool> {
                VARVE_RETURN_IF_ERROR(visit({key.substr(sizeof(kBlobs) - 1), bytes, true}));
                return true;
              }));
    return VisitUploads(kBlobs, [&](const std::string& key, const std::string&) {
      return visit({key.substr(sizeof(kBlobs) - 1), 0, false});
    });
  }

  Result<CreateOutcome> DoCreateRecord(const std::string& name, std::string_view bytes) override {
    VARVE_RETURN_IF_ERROR(Probe());
    return Create(kRecords + name, bytes);
  }

  Result<std::optional<std::string>> DoReadRecord(const std::string& name) const override {
    const Request request{.method = "GET", .key = kRecords + name};
    VARVE_ASSIGN_OR_RETURN(Answer answer, bucket_->Send(request));
    if (IsAbsent(answer)) return std::optional<std::string>();
    if (!IsDone(answer)) return bucket_->Error(request, answer);
    if (answer.body.size() > kMaxRecordBytes) {
      return Status::Corruption(url() + ": " + request.key + " has more than " +
                                std::to_string(kMaxRecordBytes) + " bytes, and is no record");
    }
    return std::optional(std::move(answer.body));
  }

  Result<std::vector<std::string>> DoListRecords(const std::string& prefix,
                                                 const std::string& after,
                                                 size_t limit) const override {
    std::vector<std::string> names;
    VARVE_RETURN_IF_ERROR(Visit(kRecords + prefix, after.empty() ? "" : kRecords + after,
                                std::min(limit, options_.list_page),
                                [&](const std::string& key, uint64_t) -> Result<bool> {
                                  names.push_back(key.substr(sizeof(kRecords) - 1));
                                  return names.size() < limit;
                                }));
    return names;
  }

  Status DoRemoveRecord(const std::string& name) override { return Remove(kRecords + name); }

 private:
  // Some servers ignore the condition of a creation and overwrite what is there.
  Status Probe() {
    const std::lock_guard lock(probe_mutex_);
    if (is_probed_) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(CreateOutcome outcome, Create(kProbe, "varve"));
    if (outcome != CreateOutcome::kExists) {
      VARVE_ASSIGN_OR_RETURN(outcome, Create(kProbe, "varve"));
    }
    if (outcome == CreateOutcome::kUnknown) {
      return Status::Unavailable(url() + ": PUT " + kProbe + ": outcome unknown");
    }
    is_probed_ = outcome == CreateOutcome::kExists;
    if (is_probed_) return Status::Ok();
    return Status::FailedPrecondition(
        url() + ": PUT " + kProbe +
        ": this server overwrites objects although it was asked to "
        "create only what is absent (If-None-Match: *). Two who push at once would destroy each "
        "other's work, so it cannot be used");
  }

  Result<CreateOutcome> Create(const std::string& key, std::string_view bytes) {
    const MemorySource source(AsBytes(bytes));
    const Request request{.method = "PUT",
                          .key = key,
                          .headers = {{"if-none-match", "*"}},
                          .source = &source,
                          .num_bytes = source.size()};
    VARVE_ASSIGN_OR_RETURN(const Answer answer, bucket_->Send(request));
    if (IsDone(answer)) return CreateOutcome::kOk;
    if (answer.code != 412) return bucket_->Error(request, answer);
    // An earlier try may have made it.
    return answer.is_ambiguous ? CreateOutcome::kUnknown : CreateOutcome::kExists;
  }

  Status Remove(const std::string& key) const {
    const Request request{.method = "DELETE", .key = key};
    VARVE_ASSIGN_OR_RETURN(const Answer answer, bucket_->Send(request));
    return IsDone(answer) || IsAbsent(answer) ? Status::Ok() : bucket_->Error(request, answer);
  }

  Status PutInParts(const std::string& key, const BlobSource& source) {
    const Request begin{
        .method = "POST", .key = key, .query = {{"uploads", ""}}, .source = &NoBytes()};
    VARVE_ASSIGN_OR_RETURN(const Answer begun, bucket_->Send(begin));
    const std::string upload = XmlText(begun.body, "UploadId");
    if (!IsDone(begun) || upload.empty()) return bucket_->Error(begin, begun);
    Status status = PutParts(key, upload, source);
    // What cannot be cleared away now is found by ListBlobs.
    if (!status.ok()) AbortUpload(key, upload).IgnoreError();
    return status;
  }

  // While the source is checked and some parts are signed, others are sent.
  Status PutParts(const std::string& key, const std::string& upload, const BlobSource& source) {
    const uint64_t part_bytes = std::max(kPartBytes, source.size() / (kMaxParts - 1) + 1);
    std::vector<std::string> tags((source.size() + part_bytes - 1) / part_bytes);
    const auto put = [&](size_t i) -> Result<std::string> {
      const uint64_t offset = i * part_bytes;
      const Request request{.method = "PUT",
                            .key = key,
                            .query = {{"partNumber", std::to_string(i + 1)}, {"uploadId", upload}},
                            .source = &source,
                            .offset = offset,
                            .num_bytes = std::min(part_bytes, source.size() - offset)};
      VARVE_ASSIGN_OR_RETURN(const Answer answer, bucket_->Send(request));
      const auto tag = answer.headers.find("etag");
      if (!IsDone(answer) || tag == answer.headers.end()) return bucket_->Error(request, answer);
      return tag->second;
    };
    VARVE_RETURN_IF_ERROR(
        RunParallel(1 + tags.size(), options_.parallel_parts, [&](size_t task) -> Status {
          if (task == 0) return source.Check();
          VARVE_ASSIGN_OR_RETURN(tags[task - 1], put(task - 1));
          return Status::Ok();
        }));
    std::string parts = "<CompleteMultipartUpload>";
    for (size_t i = 0; i < tags.size(); ++i) {
      parts += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" + tags[i] +
               "</ETag></Part>";
    }
    return Complete(key, upload, parts + "</CompleteMultipartUpload>", source.size());
  }

  Status Complete(const std::string& key, const std::string& upload, const std::string& parts,
                  uint64_t size) {
    const MemorySource body(AsBytes(parts));
    const Request request{.method = "POST",
                          .key = key,
                          .query = {{"uploadId", upload}},
                          .source = &body,
                          .num_bytes = body.size()};
    VARVE_ASSIGN_OR_RETURN(const Answer answer, bucket_->Send(request));
    const std::string error = XmlText(answer.body, "Code");
    if (IsDone(answer) && error.empty()) return Status::Ok();
    // An earlier try may have completed it.
    if (answer.is_ambiguous && error == "NoSuchUpload") {
      std::byte last{};
      VARVE_ASSIGN_OR_RETURN(const auto found, DoGetBlob(key.substr(sizeof(kBlobs) - 1), size - 1,
                                                         std::span(&last, 1)));
      if (found == size_t{1}) return Status::Ok();
    }
    return bucket_->Error(request, answer);
  }

  Status AbortUpload(const std::string& key, const std::string& upload) const {
    const Request request{.method = "DELETE", .key = key, .query = {{"uploadId", upload}}};
    VARVE_ASSIGN_OR_RETURN(const Answer answer, bucket_->Send(request));
    return IsDone(answer) || answer.code == 404 ? Status::Ok() : bucket_->Error(request, answer);
  }

  // Calls visit(key, bytes), with the key below the prefix of the URL, until it returns false.
  template <typename VisitKey>
  Status Visit(const std::string& prefix, const std::string& after, size_t page,
               const VisitKey& visit) const {
    Query query = {{"list-type", "2"},
                   {"prefix", bucket_->prefix() + prefix},
                   {"max-keys", std::to_string(page)}};
    if (!after.empty()) query["start-after"] = bucket_->prefix() + after;
    while (true) {
      const Request request{.method = "GET", .query = query};
      VARVE_ASSIGN_OR_RETURN(const Answer answer, bucket_->Send(request));
      const std::string truncated = XmlText(answer.body, "IsTruncated");
      if (!IsDone(answer)) return bucket_->Error(request, answer);
      if (truncated != "true" && truncated != "false") return NotUnderstood(request);
      for (const std::string_view object : XmlElements(answer.body, "Contents")) {
        const std::string key = XmlText(object, "Key");
        if (!key.starts_with(bucket_->prefix() + prefix)) return NotUnderstood(request);
        VARVE_ASSIGN_OR_RETURN(const bool more, visit(key.substr(bucket_->prefix().size()),
                                                      ToNumber(XmlText(object, "Size"))));
        if (!more) return Status::Ok();
      }
      if (truncated == "false") return Status::Ok();
      query.erase("start-after");
      query["continuation-token"] = XmlText(answer.body, "NextContinuationToken");
      if (query["continuation-token"].empty()) return NotUnderstood(request);
    }
  }

  // Calls visit(key, upload id) for each upload in parts that was neither completed nor aborted.
  template <typename VisitUpload>
  Status VisitUploads(const std::string& prefix, const VisitUpload& visit) const {
    Query query = {{"uploads", ""}, {"prefix", bucket_->prefix() + prefix}};
    while (true) {
      const Request request{.method = "GET", .query = query};
      VARVE_ASSIGN_OR_RETURN(const Answer answer, bucket_->Send(request));
      const std::string truncated = XmlText(answer.body, "IsTruncated");
      if (!IsDone(answer)) return bucket_->Error(request, answer);
      if (truncated != "true" && truncated != "false") return NotUnderstood(request);
      for (const std::string_view upload : XmlElements(answer.body, "Upload")) {
        const std::string key = XmlText(upload, "Key");
        if (!key.starts_with(bucket_->prefix() + prefix)) return NotUnderstood(request);
        VARVE_RETURN_IF_ERROR(
            visit(key.substr(bucket_->prefix().size()), XmlText(upload, "UploadId")));
      }
      if (truncated == "false") return Status::Ok();
      query["key-marker"] = XmlText(answer.body, "NextKeyMarker");
      query["upload-id-marker"] = XmlText(answer.body, "NextUploadIdMarker");
      if (query["key-marker"].empty()) return NotUnderstood(request);
    }
  }

  Status NotUnderstood(const Request& request) const {
    return Status::IOError(url() + ": " + request.method + " of the bucket?" +
                           s3::QueryText(request.query) + ": the answer is no list as S3 makes it");
  }

  const ObjectsOptions options_;
  const std::unique_ptr<Bucket> bucket_;
  std::mutex probe_mutex_;
  bool is_probed_ = false;  // guarded by probe_mutex_
};

}  // namespace

Result<std::unique_ptr<Objects>> OpenS3Objects(const ObjectsUrl& url,
                                               const ObjectsOptions& options) {
  VARVE_ASSIGN_OR_RETURN(auto bucket, Bucket::Open(url, options));
  return std::unique_ptr<Objects>(
      std::make_unique<S3Objects>(url.text, std::move(bucket), options));
}

}  // namespace varve::internal
