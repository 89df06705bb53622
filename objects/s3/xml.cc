// SPDX-License-Identifier: Apache-2.0
#include "objects/s3/xml.h"

#include <utility>

namespace varve::internal::s3 {

std::vector<std::string_view> XmlElements(std::string_view xml, std::string_view name) {
  const std::string first = "<" + std::string(name) + ">", last = "</" + std::string(name) + ">";
  std::vector<std::string_view> elements;
  for (size_t at = xml.find(first); at != xml.npos; at = xml.find(first, at)) {
    at += first.size();
    const size_t end = xml.find(last, at);
    if (end == xml.npos) break;
    elements.push_back(xml.substr(at, end - at));
    at = end + last.size();
  }
  return elements;
}

std::string XmlText(std::string_view xml, std::string_view name) {
  constexpr std::pair<std::string_view, char> kEntities[] = {{"&lt;", '<'},    {"&gt;", '>'},
                                                             {"&quot;", '"'},  {"&#34;", '"'},
                                                             {"&apos;", '\''}, {"&amp;", '&'}};
  const auto elements = XmlElements(xml, name);
  std::string text;
  if (elements.empty()) return text;
  for (std::string_view rest = elements[0]; !rest.empty();) {
    size_t length = 1;
    char c = rest[0];
    for (const auto& [entity, meaning] : kEntities) {
      if (!rest.starts_with(entity)) continue;
      length = entity.size();
      c = meaning;
      break;
    }
    text += c;
    rest.remove_prefix(length);
  }
  return text;
}

}  // namespace varve::internal::s3
