// SPDX-License-Identifier: Apache-2.0
//
// Who makes an attempt to push. On the same host it can be found out whether that process still
// lives. Being wrong does no harm: who finds his attempt closed starts again. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/remote/remote_state.h"

namespace varve::internal {

// Marks an attempt of this process as under way while it lives.
class AttemptUnderWay {
 public:
  explicit AttemptUnderWay(uint64_t id);
  AttemptUnderWay(const AttemptUnderWay&) = delete;
  AttemptUnderWay& operator=(const AttemptUnderWay&) = delete;
  ~AttemptUnderWay();
  uint64_t id() const { return id_; }

 private:
  const uint64_t id_;
};

// Describes this process, without spaces. Its parts are the boot, the namespace of process numbers,
// the process and its start.
std::string DescribeOwner();

// True when it is certain that nobody works on this attempt any more.
bool IsAbandoned(const RemoteAttempt& attempt);

}  // namespace varve::internal
