# SPDX-License-Identifier: Apache-2.0
#
# What `cmake --install` puts where. Component `runtime` is the command with its manual page,
# completions and documents; `development` is headers, static libraries, the shared library for C, and what
# finds them.
include_guard()
include(CMakePackageConfigHelpers)

set(VARVE_LIBRARIES varve_hooks varve_store varve_codec varve_objects varve_base)  # in the order of linking
set(VARVE_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/varve")

set(cuda_libraries)
if(VARVE_HAS_CUDA)
  set(cuda_libraries varve_cuda)
endif()
set(object_libraries)
if(VARVE_HAS_S3)
  list(APPEND object_libraries varve_s3)
endif()
if(VARVE_HAS_RADOS)
  list(APPEND object_libraries varve_rados)
endif()
install(TARGETS varve ${VARVE_LIBRARIES} varve_c varve_mpi varve_nccl ${cuda_libraries} ${object_libraries}
  EXPORT varveTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)
install(EXPORT varveTargets NAMESPACE varve:: DESTINATION "${VARVE_PACKAGE_DIR}"
  COMPONENT development)

# For find_package(varve).
configure_package_config_file(cmake/varveConfig.cmake.in varveConfig.cmake
  INSTALL_DESTINATION "${VARVE_PACKAGE_DIR}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(varveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/varveConfig.cmake"
              "${PROJECT_BINARY_DIR}/varveConfigVersion.cmake"
              cmake/FindNCCL.cmake
  DESTINATION "${VARVE_PACKAGE_DIR}" COMPONENT development)

# For pkg-config. The prefix is found from the place of the file, so that the tree can be moved.
set(VARVE_PKGCONFIG_DIR "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
string(REGEX REPLACE "[^/]+" ".." VARVE_PREFIX "${VARVE_PKGCONFIG_DIR}")
list(TRANSFORM VARVE_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE VARVE_LINK_FLAGS)
list(JOIN VARVE_LINK_FLAGS " " VARVE_LINK_FLAGS)
configure_file(cmake/varve.pc.in varve.pc @ONLY)
configure_file(cmake/varve_c.pc.in varve_c.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/varve.pc" "${PROJECT_BINARY_DIR}/varve_c.pc"
  DESTINATION "${VARVE_PKGCONFIG_DIR}" COMPONENT development)

install(FILES README.md CHANGELOG.md LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}"
  COMPONENT runtime)
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT runtime)

if(VARVE_BUILD_CLI)
  # The command writes its own manual page and completions.
  set(VARVE_WRITTEN "${PROJECT_BINARY_DIR}/written")
  file(MAKE_DIRECTORY "${VARVE_WRITTEN}")
  add_custom_command(
    OUTPUT written/varve.1 written/varve.bash written/_varve written/varve.fish
    COMMAND varve_command help --man > varve.1
    COMMAND varve_command completion bash > varve.bash
    COMMAND varve_command completion zsh > _varve
    COMMAND varve_command completion fish > varve.fish
    DEPENDS varve_command
    WORKING_DIRECTORY "${VARVE_WRITTEN}"
    COMMENT "Writing the manual page and the completions of the command"
    VERBATIM)
  add_custom_target(varve_written ALL DEPENDS written/varve.1)

  install(TARGETS varve_command DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
  install(FILES "${VARVE_WRITTEN}/varve.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1"
    COMPONENT runtime)
  install(FILES "${VARVE_WRITTEN}/varve.bash" RENAME varve
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT runtime)
  install(FILES "${VARVE_WRITTEN}/varve.fish"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT runtime)
  # In /usr/local zsh looks into the first of these, and in /usr Debian's looks into the second.
  foreach(folder site-functions vendor-completions)
    install(FILES "${VARVE_WRITTEN}/_varve"
      DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/${folder}" COMPONENT runtime)
  endforeach()
endif()
