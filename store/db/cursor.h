// SPDX-License-Identifier: Apache-2.0
//
// Looks up many keys of a family that mostly rise and lie close together. The next key then costs a
// step instead of a search. It sees the family as it was at the first look. While a Cursor lives,
// the database cannot be closed and opened again, so keep it for a short time. Thread rule: one
// thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "store/db/database.h"

namespace varve::internal {

class Cursor {
 public:
  // `database` must outlive it.
  Cursor(const Database* database, Family family) : database_(database), family_(family) {}

  // As Database::Get. The value is valid until the next call.
  Result<std::optional<std::string_view>> Find(std::string_view key);

 private:
  bool Open();
  bool MoveTo(const rocksdb::Slice& key);

  const Database* const database_;
  const Family family_;
  std::optional<Database::Use> use_;
  std::unique_ptr<rocksdb::Iterator> at_;  // must be destroyed before use_
  std::string value_;                      // of a key that was read without the iterator
};

}  // namespace varve::internal
