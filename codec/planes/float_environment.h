// SPDX-License-Identifier: Apache-2.0
//
// A trainer may flush denormals or use another rounding mode. What a frame predicts must not depend
// on that.
#pragma once

#include "base/cpu.h"

#if VARVE_X86
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace varve::internal {

// While it lives, this thread computes as IEEE 754 says: round to nearest even, with denormals.
class DefaultFloatEnvironment {
#if VARVE_X86
  // Reading the register is cheap, but writing it is not. It nearly always holds the default, apart
  // from the flags of past exceptions.
 public:
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatEnvironment() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kFlags = 0x3F;
  static constexpr unsigned kDefault = 0x1F80;
  unsigned saved_;
#else
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;
};

}  // namespace varve::internal
