// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/free_space.h"

#include <system_error>

namespace varve::internal {

Status CheckFreeSpace(const std::filesystem::path& folder, const std::string& where,
                      const std::string& what, uint64_t needed) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  if (error) return Status::IOError(where + ": " + error.message());
  if (space.available >= needed) return Status::Ok();
  return Status::IOError(where + ": " + what + " needs about " + std::to_string(needed) +
                         " bytes, and only " + std::to_string(space.available) +
                         " are free; nothing that was saved is lost: varve drop and varve forget "
                         "make room");
}

}  // namespace varve::internal
