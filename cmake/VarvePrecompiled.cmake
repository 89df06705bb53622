# SPDX-License-Identifier: Apache-2.0
#
# Headers of others that nearly every source of a library reads: precompiled, they save a quarter of
# the compiler's time. None is varve's own, as a change there would rebuild the whole library.
include_guard()

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
