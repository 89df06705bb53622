// SPDX-License-Identifier: Apache-2.0
//
// The checkpoint flags of a trainer.
#include <algorithm>
#include <utility>

#include "capi/arguments.h"
#include "capi/last_error.h"
#include "capi/objects.h"

namespace varve::internal::capi {

namespace {

std::string MakeHelp() {
  constexpr size_t kColumn = 34;
  CheckpointFlags flags;
  std::string help;
  for (const FlagSpec& spec : CheckpointFlagSpecs(&flags)) {
    std::string line = "  " + spec.name + (spec.value.empty() ? "" : " " + spec.value);
    line.resize(std::max(kColumn, line.size() + 2), ' ');
    help += line + spec.help + "\n";
  }
  return help;
}

Status SetFlag(const char* name, const char* value, CheckpointFlags* flags) {
  VARVE_RETURN_IF_ERROR(RequirePointer("name", name));
  CheckpointFlags changed = *flags;
  for (const FlagSpec& spec : CheckpointFlagSpecs(&changed)) {
    if (spec.name != name) continue;
    VARVE_RETURN_IF_ERROR(spec.set(value == nullptr ? "" : value));
    *flags = changed;
    return Status::Ok();
  }
  return Status::InvalidArgument("there is no flag \"" + std::string(name) +
                                 "\", expected one of varve_flags_help, such as --save");
}

}  // namespace

}  // namespace varve::internal::capi

using namespace varve::internal::capi;  // of this file alone, which defines functions of C
using varve::Status;

varve_status varve_flags_create(varve_flags** flags) {
  return Call("varve_flags_create", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("flags", flags));
    *flags = nullptr;
    Give(std::make_shared<FlagsObject>(), flags);
    return Status::Ok();
  });
}

void varve_flags_close(varve_flags* flags) {
  CallQuietly("varve_flags_close", [&] { Close<FlagsObject>(flags); });
}

varve_status varve_flags_set(varve_flags* flags, const char* name, const char* value) {
  return Call("varve_flags_set", [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto object, Exclusive<FlagsObject>::Get(flags));
    return SetFlag(name, value, &object->flags);
  });
}

varve_status varve_flags_take(varve_flags* flags, int* argc, char** argv) {
  return Call("varve_flags_take", [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto object, Exclusive<FlagsObject>::Get(flags));
    return varve::TakeCheckpointFlags(argc, argv, &object->flags);
  });
}

const char* varve_flags_help(void) {
  try {
    static const std::string help = MakeHelp();
    return help.c_str();
  } catch (...) {
    return "";
  }
}
