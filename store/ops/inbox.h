// SPDX-License-Identifier: Apache-2.0
//
// The folder <store>/inbox, through which other processes ask the writer for small changes. A
// request is one file, which is made in one atomic step. Its name starts with its time, so names
// sort in the order of arrival. The life of a file:
//
//   X.request   waits
//   X.started   is being applied. If it is found when the store is opened, it is applied again
//   X.applied   has the answer, until no power cut can bring X.started back
//   X.answer    tells the outcome until the process that asked takes it
//
// Thread rule: any process and thread may make requests. There is one reader, the store's writer.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/request.h"
#include "varve/result.h"

namespace varve::internal {

struct InboxRequest {
  Request request;
  bool wants_answer = true;
};

struct InboxAnswer {
  Status status;
  DropReport drop;
};

// kCorruption says which part is malformed.
std::string EncodeRequest(const InboxRequest& request);
Result<InboxRequest> DecodeRequest(std::string_view value);
std::string EncodeAnswer(const InboxAnswer& answer);
Result<InboxAnswer> DecodeAnswer(std::string_view value);

class Inbox {
 public:
  explicit Inbox(const std::filesystem::path& store) : folder_(store / "inbox") {}

  // Makes the folder. Removes answers that nobody has taken for an hour, and files of an hour ago
  // that a process which was killed began, or that another user has put there.
  Status Prepare() const;

  // For a process that asks. Put returns the request's name, and the request is then durable.
  // TakeAnswer returns nullopt while there is no answer of a user who may give one.
  Result<std::string> Put(const InboxRequest& request) const;
  Result<std::optional<InboxAnswer>> TakeAnswer(const std::string& name) const;
  // Whether the request is still to be applied, or its answer to be shown.
  bool Has(const std::string& name) const;

  // For the writer. Start reads a request and marks it as started, which is then durable. After an
  // error of the disk (kIOError, kNotFound) it waits as before. kFailedPrecondition: it is one of a
  // user who is neither the owner of the store's folder, nor the writer's, nor root.
  enum class Stage {
    kWaits,
    kStarted,  // a writer started it but did not finish
    kApplied,  // only ShowAnswer is left to do
  };
  struct Waiting {
    std::string name;
    Stage stage = Stage::kWaits;
  };
  Result<std::vector<Waiting>> List() const;  // oldest first
  Result<InboxRequest> Start(const Waiting& waiting) const;
  // Removes the request. Then it shows the answer, if it is wanted or the request failed.
  Status Finish(const std::string& name, const InboxAnswer& answer, bool wants_answer) const;
  // The end of a Finish that was interrupted.
  Status ShowAnswer(const std::string& name) const;

 private:
  std::filesystem::path File(const std::string& name, std::string_view suffix) const {
    return folder_ / (name + std::string(suffix));
  }
  const std::filesystem::path folder_;
};

}  // namespace varve::internal
