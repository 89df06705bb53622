// SPDX-License-Identifier: Apache-2.0
//
// A program by LD_PRELOAD that aborts says in which of its threads: "aborted in thread NAME". The
// threads that RocksDB starts are called "rocksdb:low" and the like.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

namespace {

void SayWhere(int) {
  char name[32] = {};
  ::prctl(PR_GET_NAME, name);
  char text[64] = "aborted in thread ";
  std::strcat(text, name);
  std::strcat(text, "\n");
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  std::signal(SIGABRT, SIG_DFL);  // abort raises it again
}

[[gnu::constructor]] void Watch() { std::signal(SIGABRT, SayWhere); }

}  // namespace
