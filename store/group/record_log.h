// SPDX-License-Identifier: Apache-2.0
//
// The ordered log of a group. It has small files with the numbers 1, 2, ..., each made once and
// never changed, and named files beside them. There are few calls, so that an object store can
// serve as well as a folder. GroupLog gives them a meaning. Thread rule: any thread and any
// process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/create_once.h"
#include "varve/result.h"

namespace varve::internal {

class RecordLog {
 public:
  RecordLog() = default;
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;
  virtual ~RecordLog() = default;

  // Makes record `number` unless it exists. After an error it is certain that this call made none.
  virtual Result<CreateOutcome> Create(uint64_t number, std::string_view bytes) = 0;
  // Returns nullopt when there is no such record. Leaves the stamp of what it has read in
  // `*stamp`.
  virtual Result<std::optional<std::string>> Read(uint64_t number,
                                                  std::string* stamp = nullptr) const = 0;
  // Returns what distinguishes this record from all others that ever have its number. It costs one
  // look. Empty = there is no such record.
  virtual Result<std::string> Stamp(uint64_t number) const = 0;
  // Makes everything that was read or listed so far durable.
  virtual Status Sync() const = 0;
  // Returns the numbers from `from` on, rising.
  virtual Result<std::vector<uint64_t>> List(uint64_t from) const = 0;
  // Removes a record. Ok when there is none.
  virtual Status Remove(uint64_t number) = 0;

  // --- named files: `name` is NAME, or FOLDER/NAME in the folders `slots` and `states` ---

  // Replaces a whole file. If `durable`, the file is durable when this returns.
  virtual Status Put(std::string_view name, std::string_view bytes, bool durable) = 0;
  // Returns nullopt when there is no such file, or when it still has the given `stamp`. The stamp
  // of what was found is put into `stamp`.
  virtual Result<std::optional<std::string>> Get(std::string_view name,
                                                 std::string* stamp = nullptr) const = 0;
  // Returns the names of the files in a folder, without the folder's name.
  virtual Result<std::vector<std::string>> Names(std::string_view folder) const = 0;
  // Removes a file. Ok when there is none.
  virtual Status Erase(std::string_view name) = 0;

  // Removes what interrupted calls of Create and Put have left. A Create that is under way may not
  // know its outcome then. A Put goes on.
  virtual Status RemoveDebris() = 0;
};

}  // namespace varve::internal
