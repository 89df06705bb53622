// SPDX-License-Identifier: Apache-2.0
//
// StopScope: ends a long call of varve early, for example when the user presses Ctrl-C.
//
//   std::atomic<bool> stop{false};           // another thread sets it, or a signal handler
//   const varve::StopScope scope(&stop);
//   const auto report = writer->Commit();
//   if (!report.ok()) return report.status();  // kAborted if the flag was set in time
//
// While a scope lives, these calls on its thread check the flag after each chunk:
// CheckpointWriter::Commit, every read of tensors, Store::Check, Store::Diff with values,
// Store::CopyTo, BackUp, RepairStore and SealStore. If the flag is set, they return kAborted.
// Nothing that they began is then visible, as after any other error. The checkpoints that CopyTo
// has already copied stay. Commit no longer checks the flag once all its chunks are encoded.
// Store::Reclaim checks the flag after each file. Store::Drop checks the flag only while it frees
// space. All steps are dropped by then. If the flag is set, Drop and Reclaim return kAborted. The
// space that is already free stays free, and the next reclaim frees the rest. The functions of
// varve/remote.h check the flag, too. A Push that returns kAborted may have made its snapshot.
// AsyncCheckpointer::Close checks the flag while it waits for the last push. Other calls do not
// check it, and neither do saves in the background (varve/async_checkpointer.h).
#pragma once

#include <atomic>

namespace varve {

// Thread rule: a scope is destroyed on the thread that made it. If a thread has several scopes, the
// newest is destroyed first, and the thread's calls check the flag of the newest alone. Any thread
// may set the flag, which must outlive the scope. If `stop` is null, nothing stops the calls.
class StopScope {
 public:
  explicit StopScope(const std::atomic<bool>* stop);
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;
  ~StopScope();

 private:
  const std::atomic<bool>* const outer_;
};

}  // namespace varve
