// SPDX-License-Identifier: Apache-2.0
#include "store/db/cursor.h"

namespace varve::internal {

namespace {

// After stepping over this many keys, a search is assumed to be cheaper.
constexpr int kSteps = 4;

}  // namespace

bool Cursor::Open() {
  if (at_ != nullptr) return true;
  Result<Database::Use> use = database_->BeginRead();
  if (!use.ok()) return false;
  use_.emplace(*std::move(use));
  at_.reset(use_->rocksdb()->NewIterator(rocksdb::ReadOptions(), use_->handle(family_)));
  return true;
}

// Moves to the first key that is not smaller. Returns false when it cannot be reached this way.
bool Cursor::MoveTo(const rocksdb::Slice& key) {
  bool is_near = at_->Valid() && at_->key().compare(key) <= 0;
  for (int i = 0; is_near && at_->Valid() && at_->key().compare(key) < 0; ++i) {
    is_near = i < kSteps;
    if (is_near) at_->Next();
  }
  if (!is_near || !at_->status().ok()) at_->Seek(key);
  return at_->status().ok();
}

// Records near the key may be damaged. That is no reason not to find the key.
Result<std::optional<std::string_view>> Cursor::Find(std::string_view key) {
  const rocksdb::Slice slice(key.data(), key.size());
  if (Open() && MoveTo(slice)) {
    if (!at_->Valid() || at_->key() != slice) return std::optional<std::string_view>();
    return std::optional(std::string_view(at_->value().data(), at_->value().size()));
  }
  at_.reset();
  use_.reset();
  VARVE_ASSIGN_OR_RETURN(auto value, database_->Get(family_, key));
  if (!value.has_value()) return std::optional<std::string_view>();
  value_ = *std::move(value);
  return std::optional<std::string_view>(value_);
}

}  // namespace varve::internal
