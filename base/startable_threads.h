// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace varve::internal {

// Returns with how many threads TBB or RocksDB can work: `wanted`, or fewer when the system does
// not let that many start. The thread that calls is one of them. These libraries end the program if
// they get only some of their threads, so this finds out before. What was found once is not looked
// for again. Any thread.
int StartableThreads(int wanted);

}  // namespace varve::internal
