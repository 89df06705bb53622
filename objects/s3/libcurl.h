// SPDX-License-Identifier: Apache-2.0
//
// The functions of libcurl that varve calls. They are looked up when the first s3:// URL is opened.
// libcurl brings thirty other libraries.
#pragma once

#include <curl/curl.h>

#include "varve/result.h"

// The names of these functions, without the prefix `curl_`.
#define VARVE_LIBCURL_FUNCTIONS(F) \
  F(easy_cleanup)                  \
  F(easy_getinfo)                  \
  F(easy_init)                     \
  F(easy_setopt)                   \
  F(easy_strerror)                 \
  F(global_init)                   \
  F(multi_add_handle)              \
  F(multi_cleanup)                 \
  F(multi_info_read)               \
  F(multi_init)                    \
  F(multi_perform)                 \
  F(multi_poll)                    \
  F(multi_remove_handle)           \
  F(multi_strerror)                \
  F(slist_append)                  \
  F(slist_free_all)                \
  F(version_info)

namespace varve::internal::s3 {

struct Libcurl {
#define VARVE_MEMBER(name) decltype(&::curl_##name) name = nullptr;
  VARVE_LIBCURL_FUNCTIONS(VARVE_MEMBER)
#undef VARVE_MEMBER
};

// The functions of libcurl.so.4. kUnavailable: there is none, or it is older than 7.85.
// Thread rule: any thread.
Result<Libcurl> LoadLibcurl();

}  // namespace varve::internal::s3
