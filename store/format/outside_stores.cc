// SPDX-License-Identifier: Apache-2.0
#include "store/format/outside_stores.h"

#include <system_error>

#include "store/format/format_file.h"

namespace varve::internal {

Status CheckIsOutsideStores(const std::filesystem::path& path) {
  std::error_code error;  // then whoever makes the folder says why
  std::filesystem::path above =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  while (above.has_relative_path()) {
    above = above.parent_path();
    if (!std::filesystem::exists(above / kFormatFileName, error) ||
        !std::filesystem::exists(above / "db", error)) {
      continue;
    }
    return Status::FailedPrecondition(path.string() + " lies inside of the store in " +
                                      above.string() + ". Take a folder outside of it");
  }
  return Status::Ok();
}

}  // namespace varve::internal
