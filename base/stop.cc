// SPDX-License-Identifier: Apache-2.0
#include "varve/stop.h"

#include <utility>

#include "base/stop.h"

namespace varve {

namespace {

thread_local const std::atomic<bool>* stop_of_thread = nullptr;

}  // namespace

StopScope::StopScope(const std::atomic<bool>* stop) : outer_(std::exchange(stop_of_thread, stop)) {}

StopScope::~StopScope() { stop_of_thread = outer_; }

}  // namespace varve

namespace varve::internal {

StopFlag::StopFlag() : flag_(stop_of_thread) {}

}  // namespace varve::internal
