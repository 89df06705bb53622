// SPDX-License-Identifier: Apache-2.0
//
// Calls of a store as data: a list of them comes from a seed or from any bytes, can be made shorter
// while it still fails, and prints as lines that a test can take. All functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace varve::internal::testing {

enum class CallKind : uint8_t {
  kSave,         // a: run, and what to do if the step exists. b: step, parent. c: content, extras
  kAbandon,      // a: run. b: step. c: content. A save that never commits
  kSetTag,       // a: run. b: step. c: tag
  kRemoveTag,    // a: run. c: tag
  kSetMetrics,   // a: run. b: step. c: metric and value
  kFork,         // a: run. b: new run. c: step, or the newest
  kRewind,       // a: run. b: step
  kDrop,         // a: run, also whether it reclaims. b, c: a bit for each step
  kForget,       // a: run. b, c: what the policy keeps
  kReclaim,      // a: whether it rewrites all files with dead chunks
  kCopy,         // a: run, and what to do if the step exists. b, c: a bit for each step
  kSubmit,       // a: run. b: step. c: which request. The writer applies it
  kSubmitAlone,  // the same without a writer
  kBackUp,       //
  kTakeBackup,   // goes on from the backup, in place of the store
  kReopen,       // a, b: settings
  kReadBeside,   // opens or closes a reader beside the writer
  kCrash,        // a: which save is in progress. Goes on from what lies on the disk
  kCheck,        // a: whether it reads data
  kSwap,         // goes on with the other store, which copies come from then
  kSaveTrained,  // a, b: as of kSave. c: which training it follows, which hint
};
inline constexpr int kNumCallKinds = static_cast<int>(CallKind::kSaveTrained) + 1;

struct Call {
  CallKind kind = CallKind::kSave;
  uint8_t a = 0, b = 0, c = 0;
  bool operator==(const Call&) const = default;
};

// Parts of arguments that several kinds share. There are few runs and steps, so that calls meet.
inline constexpr uint64_t kNumSteps = 12;
std::string_view RunOf(uint8_t a);
inline uint64_t StepOf(uint8_t b) { return b % kNumSteps; }
std::string_view TagOf(uint8_t c);

std::vector<Call> RandomCalls(uint64_t seed, size_t number);
// Four bytes are a call. All bytes are valid.
std::vector<Call> DecodeCalls(std::span<const std::byte> bytes);
std::string EncodeCalls(std::span<const Call> calls);
// A line for each call: "{CallKind::kSave, 1, 2, 3},  // run main, step 2".
std::string ToText(std::span<const Call> calls);

// Removes calls, as many as it can, from a list that fails. Without any of those that are left it
// does not fail.
std::vector<Call> Shrink(std::vector<Call> calls,
                         const std::function<bool(std::span<const Call>)>& fails);

}  // namespace varve::internal::testing
