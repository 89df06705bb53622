// SPDX-License-Identifier: Apache-2.0
#include "objects/rados/rados_objects.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>
#include <set>

#include "base/stop.h"
#include "base/util.h"
#include "objects/rados/librados.h"

namespace varve::internal {

namespace {

constexpr uint64_t kPartBytes = uint64_t{8} << 20;
constexpr char kRecords[] = "records";
constexpr char kSizeName[] = "varve.size";
constexpr std::string_view kBlobPrefix = "b:";
// An omap can be compared with a value, and what is absent is as good as empty. So no record is.
constexpr char kRecordMark = 'r';
constexpr uint64_t kAbsentPartsInARow = 16;

class WriteOp {
 public:
  explicit WriteOp(const Librados& rados) : rados_(rados), op_(rados.create_write_op()) {}
  WriteOp(const WriteOp&) = delete;
  WriteOp& operator=(const WriteOp&) = delete;
  ~WriteOp() { rados_.release_write_op(op_); }
  rados_write_op_t get() const { return op_; }

 private:
  const Librados& rados_;
  const rados_write_op_t op_;
};

class ReadOp {
 public:
  explicit ReadOp(const Librados& rados) : rados_(rados), op_(rados.create_read_op()) {}
  ReadOp(const ReadOp&) = delete;
  ReadOp& operator=(const ReadOp&) = delete;
  ~ReadOp() { rados_.release_read_op(op_); }
  rados_read_op_t get() const { return op_; }

 private:
  const Librados& rados_;
  const rados_read_op_t op_;
};

// The keys and values that a read of an omap gave.
class OmapValues {
 public:
  explicit OmapValues(const Librados& rados) : rados_(rados) {}
  OmapValues(const OmapValues&) = delete;
  OmapValues& operator=(const OmapValues&) = delete;
  ~OmapValues() {
    if (iterator_ != nullptr) rados_.omap_get_end(iterator_);
  }
  rados_omap_iter_t* out() { return &iterator_; }
  // Returns false at the end.
  bool Next(std::string_view* key, std::string_view* value) {
    char *k = nullptr, *v = nullptr;
    size_t key_size = 0, value_size = 0;
    if (iterator_ == nullptr) return false;
    if (rados_.omap_get_next2(iterator_, &k, &v, &key_size, &value_size) != 0) return false;
    if (k == nullptr) return false;
    *key = {k, key_size};
    *value = {v, value_size};
    return true;
  }

 private:
  const Librados& rados_;
  rados_omap_iter_t iterator_ = nullptr;
};

class RadosObjects : public Objects {
 public:
  RadosObjects(const Librados& rados, const ObjectsUrl& url, const ObjectsOptions& options)
      : Objects(url.text), rados_(rados), url_(url), options_(options) {}
  ~RadosObjects() override { Disconnect(); }

 protected:
  Status DoPutBlob(const std::string& name, const BlobSource& source) override {
    VARVE_ASSIGN_OR_RETURN(const rados_ioctx_t io, Connect());
    std::vector<char> block;
    const auto read = [&](uint64_t offset) {
      block.resize(std::min(kPartBytes, source.size() - offset));
      return source.Read(offset, std::as_writable_bytes(std::span(block.data(), block.size())));
    };
    // The head comes last: without it there is no blob.
    for (uint64_t offset = kPartBytes; offset < source.size(); offset += kPartBytes) {
      VARVE_RETURN_IF_ERROR(StopFlag().Check());
      VARVE_RETURN_IF_ERROR(read(offset));
      const std::string part = PartName(name, offset / kPartBytes);
      const int code = rados_.write_full(io, part.c_str(), block.data(), block.size());
      if (code < 0) return Error("write of " + part, code);
    }
    VARVE_RETURN_IF_ERROR(source.Check());
    VARVE_RETURN_IF_ERROR(read(0));
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    const std::string head = PartName(name, 0), size = std::to_string(source.size());
    const WriteOp op(rados_);
    rados_.write_op_write_full(op.get(), block.data(), block.size());
    rados_.write_op_setxattr(op.get(), kSizeName, size.data(), size.size());
    const int code = rados_.write_op_operate2(op.get(), io, head.c_str(), nullptr, 0);
    return code < 0 ? Error("write of " + head, code) : Status::Ok();
  }

  Result<std::optional<size_t>> DoGetBlob(const std::string& name, uint64_t offset,
                                          std::span<std::byte> out) const override {
    VARVE_ASSIGN_OR_RETURN(const rados_ioctx_t io, Connect());
    VARVE_ASSIGN_OR_RETURN(const auto size, SizeOf(io, name));
    if (!size.has_value()) return std::optional<size_t>();
    const size_t wanted =
        offset < *size ? static_cast<size_t>(std::min<uint64_t>(out.size(), *size - offset)) : 0;
    for (size_t done = 0; done < wanted;) {
      VARVE_RETURN_IF_ERROR(StopFlag().Check());
      const uint64_t at = offset + done;
      const size_t n = std::min<uint64_t>(wanted - done, kPartBytes - at % kPartBytes);
      const std::string part = PartName(name, at / kPartBytes);
      const int code = rados_.read(io, part.c_str(), reinterpret_cast<char*>(out.data() + done), n,
                                   at % kPartBytes);
      if (code == -ENOENT) return std::optional<size_t>();  // it is being removed
      if (code < 0) return Error("read of " + part, code);
      if (static_cast<size_t>(code) != n) {
        return Status::Corruption(url() + ": object " + part + " is too short");
      }
      done += n;
    }
    return std::optional(wanted);
  }

  Status DoRemoveBlob(const std::string& name) override {
    VARVE_ASSIGN_OR_RETURN(const rados_ioctx_t io, Connect());
    VARVE_ASSIGN_OR_RETURN(const auto size, SizeOf(io, name));
    VARVE_RETURN_IF_ERROR(Remove(io, PartName(name, 0)).status());
    const uint64_t num_parts = size.has_value() ? (*size + kPartBytes - 1) / kPartBytes : 0;
    for (uint64_t part = 1, absent = 0; part < num_parts || absent < kAbsentPartsInARow; ++part) {
      VARVE_ASSIGN_OR_RETURN(const bool was_there, Remove(io, PartName(name, part)));
      absent = was_there ? 0 : absent + 1;
      // All parts of a blob that was whole are known.
      if (size.has_value() && part + 1 >= num_parts) break;
    }
    return Status::Ok();
  }

  Status DoListBlobs(const VisitBlob& visit) const override {
    VARVE_ASSIGN_OR_RETURN(const rados_ioctx_t io, Connect());
    std::set<std::string> whole, parts;
    rados_list_ctx_t list = nullptr;
    int code = rados_.nobjects_list_open(io, &list);
    if (code < 0) return Error("list of objects", code);
    const char *entry = nullptr, *key = nullptr, *space = nullptr;
    while ((code = rados_.nobjects_list_next(list, &entry, &key, &space)) == 0) {
      std::string_view name(entry);
      if (!name.starts_with(kBlobPrefix)) continue;
      name.remove_prefix(kBlobPrefix.size());
      const size_t colon = name.find(':');
      (colon == name.npos ? whole : parts).emplace(name.substr(0, colon));
    }
    rados_.nobjects_list_close(list);
    if (code != -ENOENT) return Error("list of objects", code);
    for (const std::string& name : whole) {
      VARVE_ASSIGN_OR_RETURN(const auto size, SizeOf(io, name));
      if (size.has_value()) VARVE_RETURN_IF_ERROR(visit({name, *size, true}));
    }
    for (const std::string& name : parts) {
      if (!whole.contains(name)) VARVE_RETURN_IF_ERROR(visit({name, 0, false}));
    }
    return Status::Ok();
  }

  Result<CreateOutcome> DoCreateRecord(const std::string& name, std::string_view bytes) override {
    VARVE_ASSIGN_OR_RETURN(const rados_ioctx_t io, Connect());
    const std::string value = kRecordMark + std::string(bytes);
    const char* const keys[] = {name.data()};
    const char* const values[] = {value.data()};
    const size_t key_sizes[] = {name.size()}, value_sizes[] = {value.size()};
    int compared = 0;
    const WriteOp op(rados_);
    // Without the object there is no omap to compare with.
    rados_.write_op_create(op.get(), LIBRADOS_CREATE_IDEMPOTENT, nullptr);
    rados_.write_op_omap_cmp2(op.get(), name.data(), LIBRADOS_CMPXATTR_OP_EQ, "", name.size(), 0,
                              &compared);
    rados_.write_op_omap_set2(op.get(), keys, values, key_sizes, value_sizes, 1);
    const int code = rados_.write_op_operate2(op.get(), io, kRecords, nullptr, 0);
    if (code == -ECANCELED) return CreateOutcome::kExists;
    if (code < 0) return Error("creation of record " + name, code);
    return CreateOutcome::kOk;
  }

  Result<std::optional<std::string>> DoReadRecord(const std::string& name) const override {
    VARVE_ASSIGN_OR_RETURN(const rados_ioctx_t io, Connect());
    const char* const keys[] = {name.data()};
    const size_t key_sizes[] = {name.size()};
    OmapValues values(rados_);
    int result = 0;
    const ReadOp op(rados_);
    rados_.read_op_omap_get_vals_by_keys2(op.get(), keys, 1, key_sizes, values.out(), &result);
    const int code = rados_.read_op_operate(op.get(), io, kRecords, 0);
    if (code == -ENOENT) return std::optional<std::string>();
    if (code < 0) return Error("read of record " + name, code);
    std::string_view key, value;
    if (!values.Next(&key, &value)) return std::optional<std::string>();
    if (!value.starts_with(kRecordMark)) {
      return Status::Corruption(url() + ": record " + name + " is none of varve");
    }
    return std::optional(std::string(value.substr(1)));
  }

  Result<std::vector<std::string>> DoListRecords(const std::string& prefix,
                                                 const std::string& after,
                                                 size_t limit) const override {
    VARVE_ASSIGN_OR_RETURN(const rados_ioctx_t io, Connect());
    std::vector<std::string> names;
    std::string start = after;
    while (true) {
      OmapValues values(rados_);
      unsigned char more = 0;
      int result = 0;
      const ReadOp op(rados_);
      rados_.read_op_omap_get_vals2(op.get(), start.c_str(), prefix.c_str(),
                                    std::min(limit - names.size(), options_.list_page),
                                    values.out(), &more, &result);
      const int code = rados_.read_op_operate(op.get(), io, kRecords, 0);
      if (code == -ENOENT) return names;
      if (code < 0) return Error("list of records", code);
      const size_t before = names.size();
      std::string_view key, value;
      while (values.Next(&key, &value)) names.emplace_back(key);
      if (more == 0 || names.size() >= limit || names.size() == before) return names;
      start = names.back();
    }
  }

  Status DoRemoveRecord(const std::string& name) override {
    VARVE_ASSIGN_OR_RETURN(const rados_ioctx_t io, Connect());
    const char* const keys[] = {name.data()};
    const size_t key_sizes[] = {name.size()};
    const WriteOp op(rados_);
    rados_.write_op_omap_rm_keys2(op.get(), keys, key_sizes, 1);
    const int code = rados_.write_op_operate2(op.get(), io, kRecords, nullptr, 0);
    return code < 0 && code != -ENOENT ? Error("removal of record " + name, code) : Status::Ok();
  }

 private:
  static std::string PartName(const std::string& name, uint64_t part) {
    std::string text = std::string(kBlobPrefix) + name;
    return part == 0 ? text : text + ":" + std::to_string(part);
  }

  Status Error(const std::string& what, int code) const {
    const std::string text = url() + ": " + what + ": ";
    if (code == -ETIMEDOUT || code == -ESHUTDOWN || code == -ENOTCONN) {
      return Status::Unavailable(text + "outcome unknown: " + std::strerror(-code));
    }
    return Status::IOError(text + std::strerror(-code));
  }

  // nullopt = there is no such blob.
  Result<std::optional<uint64_t>> SizeOf(rados_ioctx_t io, const std::string& name) const {
    const std::string head = PartName(name, 0);
    char text[32] = {};
    const int size = rados_.getxattr(io, head.c_str(), kSizeName, text, sizeof(text));
    if (size == -ENOENT || size == -ENODATA) return std::optional<uint64_t>();
    if (size < 0) return Error("read of " + head, size);
    uint64_t bytes = 0;
    const auto [end, error] = std::from_chars(text, text + size, bytes);
    if (error == std::errc() && end == text + size) return std::optional(bytes);
    return Status::Corruption(url() + ": object " + head + " has no size");
  }

  // Returns whether it was there.
  Result<bool> Remove(rados_ioctx_t io, const std::string& object) const {
    const int code = rados_.remove(io, object.c_str());
    if (code < 0 && code != -ENOENT) return Error("removal of " + object, code);
    return code == 0;
  }

  Result<rados_ioctx_t> Connect() const {
    const std::lock_guard lock(mutex_);
    // The threads of a connection do not survive a fork. Its memory is left as it is.
    if (io_ != nullptr && process_ == ::getpid()) return io_;
    io_ = nullptr;
    cluster_ = nullptr;
    const auto parameter = [this](const char* name) {
      const auto it = url_.query.find(name);
      return it == url_.query.end() ? std::string() : it->second;
    };
    const std::string user = parameter("user"), file = parameter("conf");
    rados_t cluster = nullptr;
    int code = rados_.create2(&cluster, "ceph", user.empty() ? "client.admin" : user.c_str(), 0);
    if (code < 0) return Error("making a client of Ceph", code);
    const std::string seconds = std::to_string(std::max<int64_t>(
        1, std::chrono::duration_cast<std::chrono::seconds>(options_.timeout).count()));
    code = rados_.conf_read_file(cluster, file.empty() ? nullptr : file.c_str());
    for (const char* option :
         {"rados_osd_op_timeout", "rados_mon_op_timeout", "client_mount_timeout"}) {
      if (code >= 0) code = rados_.conf_set(cluster, option, seconds.c_str());
    }
    std::string what = "reading the configuration of Ceph";
    if (code >= 0) {
      what = "connecting";
      code = rados_.connect(cluster);
    }
    rados_ioctx_t io = nullptr;
    if (code >= 0) {
      what = "opening pool " + url_.place;
      code = rados_.ioctx_create(cluster, url_.place.c_str(), &io);
    }
    if (code < 0) {
      rados_.shutdown(cluster);
      return Error(what, code);
    }
    rados_.ioctx_set_namespace(io, url_.path.c_str());
    cluster_ = cluster;
    io_ = io;
    process_ = ::getpid();
    return io_;
  }

  void Disconnect() {
    if (io_ == nullptr || process_ != ::getpid()) return;
    rados_.ioctx_destroy(io_);
    rados_.shutdown(cluster_);
  }

  const Librados rados_;
  const ObjectsUrl url_;
  const ObjectsOptions options_;
  mutable std::mutex mutex_;
  mutable rados_t cluster_ = nullptr;   // guarded by mutex_
  mutable rados_ioctx_t io_ = nullptr;  // guarded by mutex_, and itself thread-safe
  mutable pid_t process_ = 0;           // guarded by mutex_
};

}  // namespace

Result<std::unique_ptr<Objects>> OpenRadosObjects(const ObjectsUrl& url,
                                                  const ObjectsOptions& options) {
  for (const auto& [name, value] : url.query) {
    if (name == "user" || name == "conf") continue;
    return Status::InvalidArgument(url.text + ": rados:// knows no parameter \"" + name +
                                   "\", expected user or conf");
  }
  const Result<Librados> rados = LoadLibrados();
  if (!rados.ok()) return rados.status().WithContext(url.text);
  return std::unique_ptr<Objects>(std::make_unique<RadosObjects>(*rados, url, options));
}

}  // namespace varve::internal
