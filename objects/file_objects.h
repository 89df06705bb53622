// SPDX-License-Identifier: Apache-2.0
//
// Objects in a folder, which may lie on a shared file system: `file:///FOLDER`. A blob is the file
// blobs/NAME, a record the file records/NAME. The file system needs a working link(2), and every
// host must see a name that another has made. Thread rule: as Objects.
#pragma once

#include <memory>

#include "objects/url.h"

namespace varve::internal {

// Makes no folder. The first call that writes does.
Result<std::unique_ptr<Objects>> OpenFileObjects(const ObjectsUrl& url,
                                                 const ObjectsOptions& options);

}  // namespace varve::internal
