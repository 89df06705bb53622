// SPDX-License-Identifier: Apache-2.0
//
// The rules for names that users type: tags and runs.
#include <algorithm>
#include <string>

#include "varve/checkpoint.h"

namespace varve {
namespace {

Status RefuseCharacters(std::string_view what, std::string_view name, std::string_view refused) {
  const size_t at = name.find_first_of(refused);
  if (at == std::string_view::npos) return Status::Ok();
  return Status::InvalidArgument(std::string(what) + " " + std::string(name) + " contains '" +
                                 name[at] + "' at byte " + std::to_string(at));
}

}  // namespace

Status ValidateTag(std::string_view tag) {
  VARVE_RETURN_IF_ERROR(ValidateName("tag", tag));
  VARVE_RETURN_IF_ERROR(RefuseCharacters("tag", tag, "@:* \t\r\n\v\f"));
  if (tag == "latest" || tag == "best") {
    return Status::InvalidArgument("tag \"" + std::string(tag) + "\" is reserved");
  }
  const bool number = std::all_of(tag.begin(), tag.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E' ||
           c == '_';
  });
  if (number) {
    return Status::InvalidArgument("tag " + std::string(tag) + " looks like a number");
  }
  return Status::Ok();
}

Status ValidateRun(std::string_view run) {
  VARVE_RETURN_IF_ERROR(ValidateName("run", run));
  return RefuseCharacters("run", run, "@: \t\r\n\v\f");
}

}  // namespace varve
