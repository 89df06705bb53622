// SPDX-License-Identifier: Apache-2.0
//
// Objects in a pool of Ceph RADOS: `rados://POOL/NAMESPACE?user=client.NAME&conf=FILE`. A blob is
// the object b:NAME with its first 8 MiB, and b:NAME:1, b:NAME:2, ... with the rest. Records are
// keys of the omap of one object. Thread rule: as Objects. After a fork the child connects anew.
#pragma once

#include <memory>

#include "objects/url.h"

namespace varve::internal {

// Connects with the first call. kInvalidArgument: the URL is wrong. kUnavailable: there is no
// librados.
Result<std::unique_ptr<Objects>> OpenRadosObjects(const ObjectsUrl& url,
                                                  const ObjectsOptions& options);

}  // namespace varve::internal
