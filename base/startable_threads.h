// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace varve::internal {

// Returns with how many threads an arena of TBB can work: `wanted`, or fewer when the system does
// not let that many start. The thread that works in the arena is one of them. A thread of TBB also
// starts others, and an exception there would end the program, so this finds out before. What was
// found once is not looked for again. Any thread.
int StartableThreads(int wanted);

}  // namespace varve::internal
