// SPDX-License-Identifier: Apache-2.0
#include "cli/manual/manual.h"

namespace varve::internal::cli {
namespace {

constexpr char kWords[] = R"(STEP names a checkpoint: a number, latest, best:METRIC (the lowest;
best:METRIC:max the highest), or a tag; in another run than main as RUN@STEP. A
NaN metric never wins, and of equal ones the newest wins. drop and copy also
take ranges: 10..90, exp@500.., first..latest.

GLOB is a tensor name in which * stands for any run of characters, dots and
slashes too.

SLICE is NumPy's: "0:10,:,-3:". A bare integer takes one index and drops the
axis. There are no steps.)";

constexpr char kStores[] =
    R"(The store is the folder that --store names, or else $VARVE_STORE. Options that
are not a verb's own may stand before or after the verb.

Verbs that only read take no lock and work while a writer is alive, also on a
read-only mount. Verbs that write need the store for themselves, except tag,
untag, metric, drop and forget: a live writer does these for them, within
seconds. The command waits for that and says what happened. With --no-wait it
does not, and whether the request could be applied is then not known. If the
writer ends meanwhile, the command does it itself.

Output files appear whole or not at all, and replace an existing file only with
--force. Long work shows a progress bar on a terminal, and nothing when piped. A
terminal with TERM=dumb gets a line every five seconds instead.)";

// The contract with scripts. cli/outcome.h has the same numbers.
constexpr char kExitCodes[] = R"(   0  done
   1  failed
   2  usage
   3  the data is damaged, or the answer leaves out what cannot be read
  10  no store there
  11  locked by another writer
  12  no such step, run or tensor
  13  already exists

An error is one line on standard error that begins with "varve: ", also with
--json.)";

constexpr char kJson[] =
    R"(--json prints one object or array on standard output and nothing else; the help
of each verb lists the keys. Keys may be added, none is removed. Byte counts are
integers, times are ISO 8601 in UTC. What is no number in JSON is one of the
strings "NaN", "Infinity" and "-Infinity".

  logical_bytes  raw bytes of all tensors as the trainer sees them
  new_bytes      raw bytes of chunks that were not in the store before
  stored_bytes   encoded bytes of those (in stats: of all distinct live chunks;
                 in ls: of all distinct chunks of the tensor)
  unique_bytes   raw bytes of all distinct live chunks
  pending_bytes  encoded bytes of dead chunks that are still on disk
  disk_bytes     bytes that the file system has allocated to the store
  by_codec       an object by predictor of the chunks that have a frame (raw,
                 keyframe, delta, scaled delta, replay), of chunks
                 raw_bytes stored_bytes
  by_coder       the same bytes by the coder of each byte plane (raw, constant,
                 zstd, sparse, nibbles, classes, halves, rans), of planes
                 raw_bytes stored_bytes; header is what frames hold beside
                 planes, unknown are frames of a varve that did not count
                 planes
  applied_by     caller (this command), writer (a live one), or nobody: it was
                 not waited for, or there was nothing to do)";

constexpr HelpTopic kTopics[] = {
    {"words", "Words on the command line", kWords},
    {"stores", "Stores and files", kStores},
    {"exit-codes", "Exit codes", kExitCodes},
    {"json", "JSON", kJson},
};

}  // namespace

std::span<const HelpTopic> HelpTopics() { return kTopics; }

}  // namespace varve::internal::cli
