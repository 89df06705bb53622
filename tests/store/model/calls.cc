// SPDX-License-Identifier: Apache-2.0
#include "tests/store/model/calls.h"

#include <algorithm>
#include <iterator>
#include <random>

namespace varve::internal::testing {
namespace {

constexpr size_t kBytesPerCall = 4;
constexpr std::string_view kNames[] = {
    "kSave",        "kAbandon", "kSetTag",     "kRemoveTag", "kSetMetrics", "kFork",
    "kRewind",      "kDrop",    "kForget",     "kReclaim",   "kCopy",       "kSubmit",
    "kSubmitAlone", "kBackUp",  "kTakeBackup", "kReopen",    "kReadBeside", "kCrash",
    "kCheck",       "kSwap",    "kSaveTrained"};
static_assert(std::size(kNames) == kNumCallKinds);

// How often a kind comes in random lists. Without saves there is nothing to call others for.
constexpr int WeightOf(CallKind kind) {
  switch (kind) {
    case CallKind::kSave:
      return 16;
    case CallKind::kSaveTrained:
      return 12;
    case CallKind::kDrop:
    case CallKind::kCopy:
      return 4;
    case CallKind::kSetTag:
    case CallKind::kFork:
    case CallKind::kRewind:
    case CallKind::kCrash:
    case CallKind::kReopen:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

std::string_view RunOf(uint8_t a) {
  constexpr std::string_view kRuns[] = {"main", "main", "main",   "main",
                                        "side", "side", "main~1", "other"};
  return kRuns[a % std::size(kRuns)];
}

std::string_view TagOf(uint8_t c) {
  constexpr std::string_view kTags[] = {"good", "release", "x"};
  return kTags[c % std::size(kTags)];
}

std::vector<Call> RandomCalls(uint64_t seed, size_t number) {
  std::vector<CallKind> kinds;
  for (int kind = 0; kind < kNumCallKinds; ++kind) {
    const auto each = static_cast<CallKind>(kind);
    kinds.insert(kinds.end(), static_cast<size_t>(WeightOf(each)), each);
  }
  std::mt19937_64 random(seed);
  std::vector<Call> calls, saves;
  while (calls.size() < number) {
    const uint64_t bits = random();
    Call call{kinds[(bits >> 24) % kinds.size()], static_cast<uint8_t>(bits),
              static_cast<uint8_t>(bits >> 8), static_cast<uint8_t>(bits >> 16)};
    if (call.kind == CallKind::kSave || call.kind == CallKind::kSaveTrained) {
      saves.push_back(call);
    } else if (!saves.empty() && (bits >> 32) % 4 != 0) {  // mostly of what is there
      const Call& save = saves[(bits >> 34) % saves.size()];
      call.a = save.a;
      if (call.kind != CallKind::kFork) call.b = save.b;
    }
    calls.push_back(call);
  }
  return calls;
}

std::vector<Call> DecodeCalls(std::span<const std::byte> bytes) {
  std::vector<Call> calls(bytes.size() / kBytesPerCall);
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto at = [&](size_t byte) {
      return std::to_integer<uint8_t>(bytes[i * kBytesPerCall + byte]);
    };
    calls[i] = {static_cast<CallKind>(at(0) % kNumCallKinds), at(1), at(2), at(3)};
  }
  return calls;
}

std::string EncodeCalls(std::span<const Call> calls) {
  std::string bytes;
  for (const Call& call : calls) {
    for (const uint8_t byte : {static_cast<uint8_t>(call.kind), call.a, call.b, call.c}) {
      bytes += static_cast<char>(byte);
    }
  }
  return bytes;
}

std::string ToText(std::span<const Call> calls) {
  std::string text;
  for (const Call& call : calls) {
    text += "{CallKind::" + std::string(kNames[static_cast<size_t>(call.kind)]);
    for (const uint8_t argument : {call.a, call.b, call.c}) {
      text += ", " + std::to_string(argument);
    }
    text += "},  // run " + std::string(RunOf(call.a)) + ", step " +
            std::to_string(StepOf(call.b)) + "\n";
  }
  return text;
}

std::vector<Call> Shrink(std::vector<Call> calls,
                         const std::function<bool(std::span<const Call>)>& fails) {
  for (size_t piece = std::max<size_t>(calls.size() / 2, 1); !calls.empty();) {
    bool is_shorter = false;
    for (size_t at = 0; at < calls.size();) {
      std::vector<Call> fewer(calls.begin(), calls.begin() + static_cast<ptrdiff_t>(at));
      const size_t end = std::min(at + piece, calls.size());
      fewer.insert(fewer.end(), calls.begin() + static_cast<ptrdiff_t>(end), calls.end());
      if (fails(fewer)) {
        calls = std::move(fewer);
        is_shorter = true;
      } else {
        at += piece;
      }
    }
    if (piece == 1 && !is_shorter) break;
    if (!is_shorter) piece /= 2;
  }
  return calls;
}

}  // namespace varve::internal::testing
