// SPDX-License-Identifier: Apache-2.0
//
// Objects in a folder that fail when a test says so: flaky://x/FOLDER. What is set here holds for
// all that are open. Thread rule: set it while nobody uses them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "objects/url.h"

namespace varve::internal::testing {

enum class Fault {
  kNone,
  kFailed,     // an error, and nothing was done
  kGone,       // somebody has removed the blob before it was whole
  kLost,       // the outcome is unknown, and it was not done
  kDone,       // the outcome is unknown, and it was done
  kDoneTwice,  // it was done, and done again as by a repeated request
};

class FlakyObjects : public Objects {
 public:
  // Decides how a call fails. `call` is put, get, remove, create, read or list.
  using Decide = std::function<Fault(std::string_view call, const std::string& name)>;
  static Decide& decide() {
    static Decide decide;
    return decide;
  }
  static Result<std::unique_ptr<Objects>> Open(const ObjectsUrl& url, const ObjectsOptions&) {
    VARVE_ASSIGN_OR_RETURN(auto below, OpenObjects("file:///" + url.path));
    return std::unique_ptr<Objects>(std::make_unique<FlakyObjects>(url.text, std::move(below)));
  }
  FlakyObjects(std::string url, std::unique_ptr<Objects> below)
      : Objects(std::move(url)), below_(std::move(below)) {}
  Status RemoveDebris() override { return below_->RemoveDebris(); }

 protected:
  Status DoPutBlob(const std::string& name, const BlobSource& source) override {
    return Do("put", name, [&] { return below_->PutBlob(name, source); });
  }
  Result<std::optional<size_t>> DoGetBlob(const std::string& name, uint64_t offset,
                                          std::span<std::byte> out) const override {
    VARVE_RETURN_IF_ERROR(Do("get", name, [] { return Status::Ok(); }));
    return below_->GetBlob(name, offset, out);
  }
  Status DoRemoveBlob(const std::string& name) override {
    return Do("remove", name, [&] { return below_->RemoveBlob(name); });
  }
  Status DoListBlobs(const VisitBlob& visit) const override {
    VARVE_RETURN_IF_ERROR(Do("list", "", [] { return Status::Ok(); }));
    return below_->ListBlobs(visit);
  }
  Result<CreateOutcome> DoCreateRecord(const std::string& name, std::string_view bytes) override {
    const Fault fault = decide() ? decide()("create", name) : Fault::kNone;
    if (fault == Fault::kFailed) return Status::IOError(url() + ": refused");
    if (fault == Fault::kLost) return CreateOutcome::kUnknown;
    auto outcome = below_->CreateRecord(name, bytes);
    if (fault == Fault::kDone) return Status::Unavailable(url() + ": outcome unknown");
    if (fault == Fault::kDoneTwice) outcome = below_->CreateRecord(name, bytes);
    return outcome;
  }
  Result<std::optional<std::string>> DoReadRecord(const std::string& name) const override {
    VARVE_RETURN_IF_ERROR(Do("read", name, [] { return Status::Ok(); }));
    return below_->ReadRecord(name);
  }
  Result<std::vector<std::string>> DoListRecords(const std::string& prefix,
                                                 const std::string& after,
                                                 size_t limit) const override {
    VARVE_RETURN_IF_ERROR(Do("list", "", [] { return Status::Ok(); }));
    return below_->ListRecords(prefix, after, limit);
  }
  Status DoRemoveRecord(const std::string& name) override { return below_->RemoveRecord(name); }

 private:
  template <typename Call>
  Status Do(std::string_view what, const std::string& name, const Call& call) const {
    const Fault fault = decide() ? decide()(what, name) : Fault::kNone;
    if (fault == Fault::kFailed) return Status::IOError(url() + ": refused");
    if (fault == Fault::kGone) return Status::NotFound(url() + ": cannot rename " + name);
    if (fault == Fault::kLost) return Status::Unavailable(url() + ": outcome unknown");
    Status status = call();
    if (fault == Fault::kDoneTwice) status = call();
    if (fault == Fault::kDone) return Status::Unavailable(url() + ": outcome unknown");
    return status;
  }

  const std::unique_ptr<Objects> below_;
};

}  // namespace varve::internal::testing
