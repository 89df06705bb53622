// SPDX-License-Identifier: Apache-2.0
//
// Every call of varve that can fail returns a Status or a Result (varve/result.h). varve throws no
// exception of its own. A Status is a plain value.
//
// Thread rule: one thread at a time for each object.
//
//   varve::Status status = writer->Put(view);
//   if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace varve {

enum class StatusCode {
  kOk = 0,
  kNotFound,         // no such store, run, step, tensor, item, metric or tag
  kAlreadyExists,    // the step, run or store is there already
  kInvalidArgument,  // the caller's input breaks a stated rule. Nothing stored was changed
  // Stored bytes are not what was written. The message names what is damaged, such as a file, or
  // run, step, tensor and chunk.
  kCorruption,
  kIOError,  // the file system failed (full disk, no permission, a file has vanished)
  kLocked,   // another process or another Store has the store open for writing, or uses the folder
  // Something that the call needs is not available: a device, a library (CUDA, MPI), a rank of a
  // group, an object store that does not answer, memory or a thread.
  kUnavailable,
  // The state does not allow the call: e.g. the writer has committed already, or a step cannot be
  // dropped because a save in progress is based on it.
  kFailedPrecondition,
  // The operation was given up. Nothing of it is visible, unless the message or the comment of the
  // function says otherwise.
  kAborted,
};

// Returns the name of a code, e.g. "not found". The result stays valid.
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  static Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
  static Status AlreadyExists(std::string m) { return {StatusCode::kAlreadyExists, std::move(m)}; }
  static Status InvalidArgument(std::string m) {
    return {StatusCode::kInvalidArgument, std::move(m)};
  }
  static Status Corruption(std::string m) { return {StatusCode::kCorruption, std::move(m)}; }
  static Status IOError(std::string m) { return {StatusCode::kIOError, std::move(m)}; }
  static Status Locked(std::string m) { return {StatusCode::kLocked, std::move(m)}; }
  static Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
  static Status FailedPrecondition(std::string m) {
    return {StatusCode::kFailedPrecondition, std::move(m)};
  }
  static Status Aborted(std::string m) { return {StatusCode::kAborted, std::move(m)}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "corruption: chunk 3 of ...", or "ok".
  std::string ToString() const;

  // The same code with "context: " before the message. Ok stays ok.
  Status WithContext(std::string_view context) const;

  // Does nothing. It marks a Status that is ignored on purpose.
  void IgnoreError() const {}

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace varve

#define VARVE_CONCAT_INNER_(a, b) a##b
#define VARVE_CONCAT_(a, b) VARVE_CONCAT_INNER_(a, b)
#define VARVE_RETURN_IF_ERROR_IMPL_(status, expr)                     \
  do {                                                                \
    if (::varve::Status status = (expr); !status.ok()) return status; \
  } while (false)

// Returns from the enclosing function (of type Status or Result<T>) when `expr` is an error.
#define VARVE_RETURN_IF_ERROR(expr) \
  VARVE_RETURN_IF_ERROR_IMPL_(VARVE_CONCAT_(varve_status_, __COUNTER__), expr)
