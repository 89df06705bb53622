# SPDX-License-Identifier: Apache-2.0
#
# How tests are added. Two functions, so that every test gets a time limit and labels alike.
include_guard()
find_package(GTest CONFIG REQUIRED)
include(GoogleTest)

# A preset may build and run only the tests that carry one label (dev: asan, tsan: tsan).
set(VARVE_TEST_LABEL "" CACHE STRING "Build and run only tests with this label; empty = all")

set(VARVE_PYTHON "${CMAKE_SOURCE_DIR}/build/venv/bin/python")
if(NOT EXISTS "${VARVE_PYTHON}")
  message(FATAL_ERROR "The tests need ${VARVE_PYTHON}, which is missing: run scripts/setup once.")
endif()

function(varve_test_is_wanted result labels)
  if(VARVE_TEST_LABEL STREQUAL "" OR VARVE_TEST_LABEL IN_LIST labels)
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# varve_add_test(frame_test SOURCES frame_test.cc LIBS varve::codec LABELS asan [TIMEOUT seconds])
# One GoogleTest program with its own main; ctest runs each TEST apart.
function(varve_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LIBS;LABELS")
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
  # Discovery before each test run loses lists, so the labels become one; ctest -L takes an
  # expression and finds each of them.
  list(JOIN arg_LABELS "," labels)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
                       PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${labels}")
endfunction()

# varve_add_python_test(crash crash_test.py ARGS --kills 40 [LABELS ..] [TIMEOUT seconds] [SERIAL])
# One Python program that exits 0 when all is well; 77 means skipped, with a reason on its output.
# It finds the programs of this build in $VARVE_BIN_DIR. SERIAL: nothing else may run beside it.
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
    TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" SKIP_RETURN_CODE 77
    RUN_SERIAL "$<BOOL:${arg_SERIAL}>"
    ENVIRONMENT "VARVE_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONPATH=${CMAKE_SOURCE_DIR}/tests/support;PYTHONUNBUFFERED=1")
endfunction()
