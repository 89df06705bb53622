# SPDX-License-Identifier: Apache-2.0
#
# What saves the compiler's time: precompiled headers, and sources that are compiled as one.
include_guard()

option(VARVE_BATCH_SOURCES "Compile eight sources of a large library as one. A missing include may stay unseen" OFF)

# Where the compiler takes long. The presets of the sanitizers do this with every library.
function(varve_batch_sources target)
  if(VARVE_BATCH_SOURCES)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    # GCC 12 inlines more then, and loses sight of what an optional holds.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  endif()
endfunction()

# Headers of others that nearly every source of a library reads: precompiled, they save a quarter of
# the compiler's time. None is varve's own, as a change there would rebuild the whole library.

set(VARVE_STANDARD_HEADERS
    <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <filesystem> <functional> <map> <memory>
    <mutex> <optional> <random> <set> <span> <string> <string_view> <thread> <variant> <vector>)

# varve_precompile(varve_store <rocksdb/db.h>): the standard headers, and those named.
function(varve_precompile target)
  target_precompile_headers(${target} PRIVATE ${VARVE_STANDARD_HEADERS} ${ARGN})
  # GCC 12 no longer knows what lies in a system's header when it comes precompiled.
  target_compile_options(${target} PRIVATE
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow>")
endfunction()
