// SPDX-License-Identifier: Apache-2.0
//
// StopScope: ends a long call of varve early, for example when the user presses Ctrl-C.
//
//   std::atomic<bool> stop{false};           // another thread sets it, or a signal handler
//   const varve::StopScope scope(&stop);
//   const auto report = writer->Commit();
//   if (!report.ok()) return report.status();  // kAborted if the flag was set in time
//
// While a scope lives, these calls of its thread look at the flag from chunk to chunk:
// CheckpointWriter::Commit, every read of tensors, Store::Check, Store::Diff with values,
// Store::CopyTo, BackUp and RepairStore. If the flag is set, they return kAborted. Nothing that
// they began is visible then, as after any other error. The checkpoints that CopyTo has copied by
// then stay. When all chunks of a Commit are encoded, it no longer looks at the flag, and goes on
// to its end. Store::Reclaim looks at the flag from file to file. Store::Drop does so
// when it frees space, after it has dropped all steps of the call. The space that is free by then
// stays free, and the next reclaim frees the rest. The functions of varve/remote.h look at the
// flag, too, and AsyncCheckpointer::Close while it waits for the last push. Other calls do not, and
// neither do saves in the background (varve/async_checkpointer.h).
#pragma once

#include <atomic>

namespace varve {

// Thread rule: a scope is destroyed on the thread that made it. If a thread has several scopes, the
// newest is destroyed first, and the thread's calls look at the flag of the newest alone. Any
// thread may set the flag, which must outlive the scope.
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
