# SPDX-License-Identifier: Apache-2.0
#
# Finds the CUDA toolkit and says in VARVE_HAS_CUDA whether it is there. Nothing needs it.
include_guard()

set(VARVE_WITH_CUDA AUTO CACHE STRING "Build for GPUs: AUTO (when there is a CUDA toolkit), ON, OFF")
set_property(CACHE VARVE_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(VARVE_HAS_CUDA OFF)
if(VARVE_WITH_CUDA)
  # Often outside of PATH.
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
               PATH_SUFFIXES bin)
  if(CMAKE_CUDA_COMPILER)
    set(VARVE_HAS_CUDA ON)
    # The first that compiles for the last of the architectures below.
    set(least_nvcc 12.8)
    execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
    if(nvcc_says MATCHES "release ([0-9]+\\.[0-9]+)" AND CMAKE_MATCH_1 VERSION_LESS least_nvcc
       AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND VARVE_WITH_CUDA STREQUAL "AUTO")
      message(STATUS "varve::cuda: ${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_MATCH_1}, expected ${least_nvcc} or "
                     "later, or CMAKE_CUDA_ARCHITECTURES with architectures that it has")
      set(VARVE_HAS_CUDA OFF)
    endif()
  elseif(NOT VARVE_WITH_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "VARVE_WITH_CUDA is ${VARVE_WITH_CUDA}, but there is no nvcc in PATH, CUDA_HOME or "
                        "/usr/local/cuda")
  endif()
endif()
if(NOT VARVE_HAS_CUDA)
  message(STATUS "varve::cuda: without CUDA")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)  # and PTX of the last, for what comes after it
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
message(STATUS "varve::cuda: with CUDA ${CUDAToolkit_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES}")
