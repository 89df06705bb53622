// SPDX-License-Identifier: Apache-2.0
//
// What an object store must be able to do for varve. It holds two kinds of objects:
//
//   blobs     big. The caller gives each a name that was never used before. Whole or absent
//   records   at most 64 KiB. Each is created once, by one creator, and never changed
//
// An engine implements the protected functions. docs/remote.md says which engines there are, and
// tests/objects/conformance_test.cc what each must do.
//
// Errors. kUnavailable: the outcome is unknown, because the engine was not answered, or too late.
// What was asked for may have happened, and may still happen later. After any other error of a
// call that changes something, nothing was changed. kAborted: the caller asked for it
// (varve/stop.h). Each message names the URL and the request, and never credentials.
//
// Thread rule: any thread and any process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/create_once.h"
#include "varve/result.h"

namespace varve::internal {

inline constexpr size_t kMaxRecordBytes = size_t{64} << 10;
inline constexpr size_t kMaxObjectName = 200;

// What bounds the work of an engine.
struct ObjectsOptions {
  std::chrono::milliseconds timeout{60'000};     // of one request without progress
  std::chrono::milliseconds retry_for{120'000};  // how long requests of one call are repeated
  int parallel_parts = 4;                        // of one large blob that are put at the same time
  size_t list_page = 1000;                       // names that one request asks for
};

// The bytes of a blob that is put. They may be read more than once, and by any thread.
class BlobSource {
 public:
  BlobSource() = default;
  BlobSource(const BlobSource&) = delete;
  BlobSource& operator=(const BlobSource&) = delete;
  virtual ~BlobSource() = default;
  virtual uint64_t size() const = 0;
  // Fills `out` with the bytes from `offset` on.
  virtual Status Read(uint64_t offset, std::span<std::byte> out) const = 0;
  // Returns ok if these bytes may become a blob. An engine asks once, perhaps while it sends them,
  // and after an error there is no blob. It may take as long as to read all of them.
  virtual Status Check() const { return Status::Ok(); }
};

// Bytes in memory, which must outlive it.
class MemorySource : public BlobSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  Status Read(uint64_t offset, std::span<std::byte> out) const override;

 private:
  const std::span<const std::byte> bytes_;
};

struct BlobInfo {
  std::string name;
  uint64_t bytes = 0;
  // False: a PutBlob of this name is under way, or has been interrupted. GetBlob does not see it,
  // RemoveBlob removes it.
  bool is_whole = true;
};

class Objects {
 public:
  // `url` is for messages, without credentials.
  explicit Objects(std::string url) : url_(std::move(url)) {}
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  virtual ~Objects() = default;

  const std::string& url() const { return url_; }

  // Names have 1 to 200 characters of A-Z a-z 0-9 . _ - and start with a letter or digit. Blobs and
  // records have names of their own.

  // Ok: the blob is durable and everyone sees it. The same name may be put again only with the same
  // bytes, as after an unknown outcome.
  Status PutBlob(std::string_view name, const BlobSource& source);
  // Reads up to out.size() bytes from `offset` on, and returns how many. It reads less only at the
  // end of the blob. nullopt = there is no such blob.
  Result<std::optional<size_t>> GetBlob(std::string_view name, uint64_t offset,
                                        std::span<std::byte> out) const;
  // Ok when there is no such blob.
  Status RemoveBlob(std::string_view name);
  // Visits all blobs that exist from the start of the call to its end, and perhaps others, in any
  // order. It is slow. It ends with the first error of `visit`.
  using VisitBlob = std::function<Status(const BlobInfo&)>;
  Status ListBlobs(const VisitBlob& visit) const;

  // If several create a record of one name, one of them gets kOk. The record is durable then.
  // kUnknown: as kUnavailable. Read it to learn whose it is, if it is there.
  Result<CreateOutcome> CreateRecord(std::string_view name, std::string_view bytes);
  // nullopt = there is no such record. It sees every record whose creation has returned.
  Result<std::optional<std::string>> ReadRecord(std::string_view name) const;
  // Returns names that start with `prefix` and are greater than `after`, rising, at most `limit` of
  // them. It finds each record that exists from the start of the call to its end.
  Result<std::vector<std::string>> ListRecords(std::string_view prefix, std::string_view after,
                                               size_t limit) const;
  // Ok when there is no such record.
  Status RemoveRecord(std::string_view name);
  // Removes what interrupted creations of records have left. It may make the outcome of a creation
  // that is under way unknown.
  virtual Status RemoveDebris() { return Status::Ok(); }

 protected:
  virtual Status DoPutBlob(const std::string& name, const BlobSource& source) = 0;
  virtual Result<std::optional<size_t>> DoGetBlob(const std::string& name, uint64_t offset,
                                                  std::span<std::byte> out) const = 0;
  virtual Status DoRemoveBlob(const std::string& name) = 0;
  virtual Status DoListBlobs(const VisitBlob& visit) const = 0;
  virtual Result<CreateOutcome> DoCreateRecord(const std::string& name, std::string_view bytes) = 0;
  virtual Result<std::optional<std::string>> DoReadRecord(const std::string& name) const = 0;
  virtual Result<std::vector<std::string>> DoListRecords(const std::string& prefix,
                                                         const std::string& after,
                                                         size_t limit) const = 0;
  virtual Status DoRemoveRecord(const std::string& name) = 0;

 private:
  Status CheckName(std::string_view name, std::string_view what) const;

  const std::string url_;
};

}  // namespace varve::internal
