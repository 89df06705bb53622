// SPDX-License-Identifier: Apache-2.0
//
// What TSan sees of the runtime. The locks of the runtime would order much that CUDA does not. For
// example, a stream that takes its next work from a queue would be ordered before the next thread
// that locks the queue. A wait that the code under test forgot would then stay hidden. So TSan
// ignores the runtime's own work (Unseen), and each order that CUDA gives is declared: Publish on
// one side, Observe on the other. What kernels, copies and tests do is Seen. Without TSan all of
// this does nothing.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VARVE_TSAN
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define VARVE_TSAN
#endif

#ifdef VARVE_TSAN
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long size);
}
#endif

namespace varve::internal::testing::runtime {

class Visibility {
 public:
  explicit Visibility(bool hides) : before_(is_hidden_) { Change(hides); }
  ~Visibility() { Change(before_); }
  Visibility(const Visibility&) = delete;
  Visibility& operator=(const Visibility&) = delete;

 private:
  static void Change(bool hides) {
    if (hides == is_hidden_) return;
    is_hidden_ = hides;
#ifdef VARVE_TSAN
    if (hides) {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
      AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    } else {
      AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
#endif
  }

  inline static thread_local bool is_hidden_ = false;
  const bool before_;
};

// Applies to this thread until the end of the scope. Scopes nest.
struct Unseen : Visibility {
  Unseen() : Visibility(true) {}
};
struct Seen : Visibility {
  Seen() : Visibility(false) {}
};

// What this thread has done comes before what a thread does that observes `edge` later.
inline void Publish([[maybe_unused]] void* edge) {
#ifdef VARVE_TSAN
  const Seen seen;
  __tsan_release(edge);
#endif
}
inline void Observe([[maybe_unused]] void* edge) {
#ifdef VARVE_TSAN
  const Seen seen;
  __tsan_acquire(edge);
#endif
}

// For reads by libraries that are not instrumented.
inline void SeeRead([[maybe_unused]] const void* begin, [[maybe_unused]] unsigned long size) {
#ifdef VARVE_TSAN
  __tsan_read_range(const_cast<void*>(begin), size);
#endif
}

}  // namespace varve::internal::testing::runtime
