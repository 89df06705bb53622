// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/targets.h"

#include <fstream>
#include <iterator>
#include <sstream>

namespace varve::internal::fuzz {

std::string ReadGolden(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(std::string(VARVE_GOLDEN) + "/" + name, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<FuzzTarget> AllTargets() {
  std::vector<FuzzTarget> all;
  for (auto&& targets :
       {FrameTargets(), StoreTargets(), CatalogueTargets(), CommandTargets(), FormatTargets()}) {
    all.insert(all.end(), targets.begin(), targets.end());
  }
  return all;
}

}  // namespace varve::internal::fuzz
