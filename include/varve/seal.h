// SPDX-License-Identifier: Apache-2.0
//
// Sealed stores: a check with the store's key proves that nobody without the key has changed the
// store. docs/security.md says how, against whom, and what it costs.
//
//   auto key = varve::ReadKeyFile("secret.key");   // head -c 32 /dev/urandom > secret.key
//   if (!key.ok()) return key.status();
//   const varve::StoreOptions options{.key = *key};
//   auto store = varve::Store::OpenOrCreate("ckpt", {.store = options});
//   if (!store.ok()) return store.status();
//
// Everything is saved and read as in any other store. Only a store that is made with a key is
// sealed. To seal the members of a group, open the group with the key in every process of every
// rank. The log of the group is never sealed.
//
// A table file, which is a file with records or chunks, has a *tag*: a code in the manifest that
// only a process with the key can compute. It has nothing to do with the tag of a step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "varve/result.h"

namespace varve {

// Reads a key: all bytes of a file, which has 16 to 1,024. The bytes should be random, for example
// `head -c 32 /dev/urandom`. kNotFound: there is no file. kInvalidArgument: it has too few bytes or
// too many. Thread rule: any thread.
Result<std::string> ReadKeyFile(const std::filesystem::path& path);

struct SealReport {
  uint64_t num_files = 0;  // table files that were compared with their tags
};

// Seals a copy of a sealed store again. This is needed in two cases. The copy was pulled from an
// object store without the key. The copy has lost `seal`, the folder with its seal. SealStore reads
// every table file and compares it with its tag. So if it succeeds, a process with the key has
// written each of them. SealStore cannot tell whether the files belong to one state of the store.
// The caller must know that, for example because nobody else could write the snapshot or the
// backup.
//
// Thread rule: any thread. No writer may have the store open.
// kNotFound: no store. kFailedPrecondition: the store was not made with a key, or it has a seal of
// another key than `key`. kInvalidArgument: `key` has too few bytes or too many. kLocked: a writer
// has it open. kCorruption: a table file is missing or does not have its tag, and the message names
// it. Without a seal, a wrong `key` gives this error, too. It is also the error for a manifest that
// has lost its end, and for a log in db/ that is not empty. kAborted: see varve/stop.h.
Result<SealReport> SealStore(const std::filesystem::path& path, const std::string& key);

}  // namespace varve
