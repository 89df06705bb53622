// SPDX-License-Identifier: Apache-2.0
//
// Lets the functions of varve/remote.h use URLs of Ceph RADOS: rados://POOL/NAMESPACE. UseRados is
// in a library of its own, varve::rados. Building it needs the header of librados. The library
// librados.so.2 is loaded with the first such URL. What was opened with such a URL must be
// destroyed before main returns or exit is called.
//
//   varve::UseRados();  // once, before the first such URL
#pragma once

namespace varve {

// Thread rule: any thread. Calling it again changes nothing.
void UseRados();

}  // namespace varve
