// SPDX-License-Identifier: Apache-2.0
//
// As much of XML as answers of S3 need: elements without attributes that are looked for by name.
// Functions are stateless, and take any bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace varve::internal::s3 {

// Returns what stands between each <name> and the next </name>.
std::vector<std::string_view> XmlElements(std::string_view xml, std::string_view name);
// Returns the text of the first element of this name with its entities decoded. Empty = none.
std::string XmlText(std::string_view xml, std::string_view name);

}  // namespace varve::internal::s3
