// SPDX-License-Identifier: Apache-2.0
//
// Plays calls (calls.h) on real stores and on models of them, and compares the two after each call.
// Stateless. One thread at a time in a folder.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "tests/store/model/calls.h"

namespace varve::internal::testing {

// A mistake that is made on purpose, to prove that it is found.
enum class Mistake { kNone, kModelForgetsDrops, kStoreSkipsTags };

// Plays the calls with two stores in `folder`, which is made and removed. Afterwards both are
// checked with their data, emptied, and must hold nothing more. Returns what was wrong, and after
// which call. Empty: nothing.
std::string Play(const std::filesystem::path& folder, std::span<const Call> calls,
                 Mistake mistake = Mistake::kNone);

}  // namespace varve::internal::testing
