// SPDX-License-Identifier: Apache-2.0
//
// A program by LD_PRELOAD that aborts says in which of its threads: "aborted in thread NAME". The
// threads that RocksDB starts are called "rocksdb:low" and the like. The frames of its stack
// follow, one a line: "LIBRARY(SYMBOL+OFFSET) [ADDRESS]". One that uses memory which it does not
// have says in which library: "crashed in /usr/lib/librocksdb.so.7.8".
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

namespace {

constexpr int kMaxFrames = 64;

void SayWhere(int) {
  char name[32] = {};
  ::prctl(PR_GET_NAME, name);
  char text[64] = "aborted in thread ";
  std::strcat(text, name);
  std::strcat(text, "\n");
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  void* frames[kMaxFrames];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, kMaxFrames), STDERR_FILENO);
  std::signal(SIGABRT, SIG_DFL);  // abort raises it again
}

void SayWhose(int, siginfo_t*, void* context) {
#if defined(__x86_64__)
  const auto at = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
#else
  const auto at = static_cast<ucontext_t*>(context)->uc_mcontext.pc;
#endif
  Dl_info found{};
  const bool is_known = ::dladdr(reinterpret_cast<void*>(at), &found) != 0;  // NOLINT: an address
  char text[512] = "crashed in ";
  std::strncat(text, is_known ? found.dli_fname : "no library", sizeof(text) - 32);
  std::strcat(text, "\n");
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  std::signal(SIGSEGV, SIG_DFL);  // the same instruction raises it again
}

[[gnu::constructor]] void Watch() {
  void* frame;
  ::backtrace(&frame, 1);  // the first call loads a library, which takes memory
  std::signal(SIGABRT, SayWhere);
  // Not on the stack of the thread, which may have no memory left.
  static char stack[64 << 10];
  const stack_t alternative{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof(stack)};
  struct sigaction action {};
  action.sa_sigaction = SayWhose;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  if (::sigaltstack(&alternative, nullptr) == 0) ::sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace
