# SPDX-License-Identifier: Apache-2.0
add_library(varve_warnings INTERFACE)
target_compile_options(varve_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Wconversion;-Wno-sign-conversion;-Wno-missing-field-initializers>"
  # GCC 12 sees overlapping copies in `"text" + std::string` (its bug 105651).
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
