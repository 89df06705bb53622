# SPDX-License-Identifier: Apache-2.0
#
# `cpack` in the build folder makes two Debian packages: varve, the command, which depends on the
# libraries that it was linked with, and recommends those that it loads when they are needed; and
# libvarve-dev, to build programs with. The latter also holds
# the shared library for C, and its dependencies are those of the static libraries.
include_guard()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME varve)
set(CPACK_PACKAGE_VENDOR "The varve developers")
set(CPACK_PACKAGE_CONTACT "The varve developers <varve@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME varve)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(recommended)
if(VARVE_HAS_S3)
  list(APPEND recommended "libcurl4 (>= 7.85)")
endif()
if(VARVE_HAS_RADOS)
  list(APPEND recommended librados2)
endif()
list(JOIN recommended ", " CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libvarve-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "librocksdb-dev (>= 7.8), libtbb-dev, libzstd-dev, libxxhash-dev, libsodium-dev, pkg-config")
if(VARVE_HAS_MPI)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "libopenmpi-dev")
endif()
include(CPack)
