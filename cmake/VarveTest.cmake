# SPDX-License-Identifier: Apache-2.0
#
# How tests are added. Two functions, so that every test gets a time limit and labels alike.
include_guard()
find_package(GTest CONFIG REQUIRED)
include(GoogleTest)

# A preset may build and run only the tests that carry one label (dev: asan, tsan: tsan, optimized).
# Those that no sanitizer runs are `optimized` without saying so.
set(VARVE_TEST_LABEL "" CACHE STRING "Build and run only tests with this label; empty = all")

set(VARVE_PYTHON "${CMAKE_SOURCE_DIR}/build/venv/bin/python")
if(NOT EXISTS "${VARVE_PYTHON}")
  message(FATAL_ERROR "The tests need ${VARVE_PYTHON}, which is missing: run scripts/setup once.")
endif()

function(varve_test_is_wanted result labels)
  if(NOT "asan" IN_LIST labels AND NOT "tsan" IN_LIST labels)
    list(APPEND labels optimized)
  endif()
  if(VARVE_TEST_LABEL STREQUAL "" OR VARVE_TEST_LABEL IN_LIST labels)
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# What all GoogleTest programs include, read once for all of them. Nothing of varve's own: a change
# there rebuilds what includes it. (In varve's libraries this would save little.)
add_library(varve_test_headers OBJECT "${CMAKE_CURRENT_LIST_DIR}/../tests/support/headers.cc")
target_link_libraries(varve_test_headers PRIVATE GTest::gmock)
# Tests run briefly and compile long. The libraries are optimised as ever. What a test inlines is not.
target_compile_options(varve_test_headers PRIVATE "$<$<CONFIG:Release>:-O1>")
target_precompile_headers(varve_test_headers PRIVATE
  <algorithm> <filesystem> <fstream> <functional> <map> <memory> <optional> <random> <set> <span> <string>
  <thread> <vector> <gmock/gmock.h> <gtest/gtest.h>)

# Some tests simulate what a disk loses. Their files may lie in memory.
set(VARVE_TEST_MEMORY_DIR "" CACHE PATH "A file system in memory, for tests that write much; empty = as all others")

# varve_add_test(frame_test SOURCES frame_test.cc LIBS varve::codec LABELS asan [TIMEOUT seconds])
# One GoogleTest program with its own main; ctest runs each TEST apart. APART: no two sources are
# compiled as one, because their helpers have the same names, or one of them replaces the allocator.
# IN_MEMORY: its files may lie in VARVE_TEST_MEMORY_DIR.
function(varve_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "APART;IN_MEMORY" "TIMEOUT" "SOURCES;LIBS;LABELS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "varve_add_test(${name}): needs SOURCES; unknown: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  varve_test_is_wanted(wanted "${arg_LABELS}")
  if(NOT wanted)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_LIBS} varve_warnings GTest::gmock_main)
  target_precompile_headers(${name} REUSE_FROM varve_test_headers)
  if(arg_APART)
    set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  elseif(NOT DEFINED CMAKE_UNITY_BUILD OR CMAKE_UNITY_BUILD)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
  # GCC 12 no longer knows what lies in a system's header when it comes precompiled.
  target_compile_options(${name} PRIVATE
    "$<$<CONFIG:Release>:-O1>"
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow>")
  # Discovery before each test run loses lists, so the labels become one; ctest -L takes an
  # expression and finds each of them.
  list(JOIN arg_LABELS "," labels)
  set(properties TIMEOUT ${arg_TIMEOUT})
  if(labels)
    list(APPEND properties LABELS "${labels}")
  endif()
  if(arg_IN_MEMORY AND VARVE_TEST_MEMORY_DIR)
    list(APPEND properties ENVIRONMENT "VARVE_TEST_DIR=${VARVE_TEST_MEMORY_DIR}")
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 PROPERTIES ${properties})
endfunction()

# varve_add_python_test(crash crash_test.py ARGS --kills 40 [LABELS ..] [TIMEOUT seconds] [SERIAL])
# One Python program that exits 0 when all is well; 77 means skipped, with a reason on its output.
# It finds the programs of this build in $VARVE_BIN_DIR. SERIAL: nothing else may run beside it.
# Those with a long timeout start first, or one of them would run alone at the end.
function(varve_add_python_test name script)
  cmake_parse_arguments(PARSE_ARGV 2 arg "SERIAL" "TIMEOUT" "ARGS;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  varve_test_is_wanted(wanted "${arg_LABELS}")
  if(NOT wanted)
    return()
  endif()
  add_test(NAME ${name}
           COMMAND "${VARVE_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/${script}" ${arg_ARGS})
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT} LABELS "${arg_LABELS}" SKIP_RETURN_CODE 77
    RUN_SERIAL "$<BOOL:${arg_SERIAL}>"
    ENVIRONMENT "VARVE_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONPATH=${CMAKE_SOURCE_DIR}/tests/support;PYTHONUNBUFFERED=1")
endfunction()
