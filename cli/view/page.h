// SPDX-License-Identifier: Apache-2.0
//
// The files of cli/view/page, which lie inside the command. embed_page.cmake writes their bytes.
#pragma once

#include <span>
#include <string_view>

namespace varve::internal::cli {

struct PageFile {
  std::string_view name;  // "app.js"
  std::string_view type;  // "text/javascript; charset=utf-8"
  std::string_view bytes;
};

std::span<const PageFile> PageFiles();

}  // namespace varve::internal::cli
