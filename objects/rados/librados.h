// SPDX-License-Identifier: Apache-2.0
//
// The functions of librados that varve calls. They are looked up when the first rados:// URL is
// opened.
#pragma once

#include <rados/librados.h>

#include "varve/result.h"

// The names of these functions, without the prefix `rados_`.
#define VARVE_LIBRADOS_FUNCTIONS(F) \
  F(conf_read_file)                 \
  F(conf_set)                       \
  F(connect)                        \
  F(create2)                        \
  F(create_read_op)                 \
  F(create_write_op)                \
  F(getxattr)                       \
  F(ioctx_create)                   \
  F(ioctx_destroy)                  \
  F(ioctx_set_namespace)            \
  F(nobjects_list_close)            \
  F(nobjects_list_next)             \
  F(nobjects_list_open)             \
  F(omap_get_end)                   \
  F(omap_get_next2)                 \
  F(read)                           \
  F(read_op_omap_get_vals2)         \
  F(read_op_omap_get_vals_by_keys2) \
  F(read_op_operate)                \
  F(release_read_op)                \
  F(release_write_op)               \
  F(remove)                         \
  F(shutdown)                       \
  F(write_full)                     \
  F(write_op_create)                \
  F(write_op_omap_cmp2)             \
  F(write_op_omap_rm_keys2)         \
  F(write_op_omap_set2)             \
  F(write_op_operate2)              \
  F(write_op_setxattr)              \
  F(write_op_write_full)

namespace varve::internal {

struct Librados {
#define VARVE_MEMBER(name) decltype(&::rados_##name) name = nullptr;
  VARVE_LIBRADOS_FUNCTIONS(VARVE_MEMBER)
#undef VARVE_MEMBER
};

// The functions of librados.so.2. kUnavailable: there is none, or one of its functions is missing.
// Thread rule: any thread.
Result<Librados> LoadLibrados();

}  // namespace varve::internal
