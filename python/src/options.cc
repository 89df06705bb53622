// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cmath>
#include <memory>
#include <string>

#include "cli/parse.h"
#include "python/src/bindings.h"
#include "python/src/callbacks.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace varve::python {

Compression ParseCompression(std::string_view name) {
  if (name == "auto") return Compression::kAuto;
  if (name == "none") return Compression::kNone;
  if (name == "fast") return Compression::kFast;
  if (name == "max") return Compression::kMax;
  throw StatusError(Status::InvalidArgument("compression \"" + std::string(name) +
                                            "\" is not auto, none, fast or max"));
}

Entropy ParseEntropy(std::string_view name) {
  if (name == "auto") return Entropy::kAuto;
  if (name == "zstd") return Entropy::kZstd;
  if (name == "rans") return Entropy::kRans;
  throw StatusError(
      Status::InvalidArgument("entropy \"" + std::string(name) + "\" is not auto, zstd or rans"));
}

OnExisting ParseOnExisting(std::string_view name) {
  if (const auto found = internal::cli::FindOnExisting(name)) return *found;
  throw StatusError(Status::InvalidArgument("on_existing \"" + std::string(name) +
                                            "\" is not error, replace or fork"));
}

DType RequireDType(std::string_view name) {
  const std::optional<DType> dtype = ParseDType(name);
  if (!dtype) ThrowIfError(Status::InvalidArgument("no dtype is called " + std::string(name)));
  return *dtype;
}

TensorRole RequireRole(std::string_view name) {
  for (int i = 0; i < kNumTensorRoles; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (TensorRoleName(role) == name) return role;
  }
  throw StatusError(Status::InvalidArgument("role \"" + std::string(name) +
                                            "\" is not other, parameter, buffer or optimizer"));
}

std::chrono::milliseconds ParseSeconds(std::string_view what, double seconds) {
  constexpr double kMost = 1e6 * 24 * 60 * 60;
  if (seconds >= 0 && seconds <= kMost) {
    return std::chrono::milliseconds(std::llround(seconds * 1000));
  }
  throw StatusError(Status::InvalidArgument(std::string(what) + " is " + std::to_string(seconds) +
                                            ", expected 0 to 86400000000 seconds"));
}

RetentionPolicy MakePolicy(uint64_t keep_last, uint64_t keep_every,
                           const std::vector<KeepBestTuple>& keep_best, int64_t keep_within_seconds,
                           const std::vector<std::string>& keep_tags) {
  RetentionPolicy policy{.keep_last = keep_last,
                         .keep_every = keep_every,
                         .keep_within = std::chrono::seconds(keep_within_seconds),
                         .keep_tags = keep_tags};
  for (const auto& [metric, highest, count] : keep_best) {
    policy.keep_best.push_back({metric, highest, count});
  }
  return policy;
}

std::shared_ptr<nb::object> ShareWithoutGil(const nb::object& object) {
  return {new nb::object(object), [](nb::object* held) {
            const CallbackScope scope;
            if (scope.may_call()) delete held;
          }};
}

Progress MakeProgress(const nb::object& callback) {
  if (callback.is_none()) return {};
  return [shared = ShareWithoutGil(callback)](uint64_t done_bytes, uint64_t total_bytes) {
    const CallbackScope scope;
    if (!scope.may_call()) return;
    try {
      (*shared)(done_bytes, total_bytes);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(*shared);
    }
  };
}

}  // namespace varve::python
