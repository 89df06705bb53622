// SPDX-License-Identifier: Apache-2.0
//
// The checkpointer over a store that is open already.
#pragma once

#include <filesystem>
#include <memory>

#include "varve/async_checkpointer.h"

namespace varve {

// kInvalidArgument: options that cannot be.
Status ValidateOptions(const CheckpointerOptions& options);
// How such a store is to be opened.
StoreOptions StoreOptionsOf(const CheckpointerOptions& options);
// `path`: where the file system is asked how much is free. Precondition: valid options.
std::unique_ptr<AsyncCheckpointer> MakeCheckpointer(std::unique_ptr<Store> store,
                                                    const std::filesystem::path& path,
                                                    const CheckpointerOptions& options);

}  // namespace varve
