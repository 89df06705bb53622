// SPDX-License-Identifier: Apache-2.0
//
// A temporary folder with small files in it.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/support/temp_folder.h"

namespace varve::internal::formats {

class FileFolder : public varve::internal::testing::TempFolder {
 public:
  std::filesystem::path Write(std::string_view name, std::string_view content) const {
    const std::filesystem::path file = path() / name;
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }

  std::string Read(std::string_view name) const {
    std::ifstream file(path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

}  // namespace varve::internal::formats
