// SPDX-License-Identifier: Apache-2.0
//
// Lets the functions of varve/remote.h use URLs of S3: s3://BUCKET/PREFIX. UseS3 is in a library of
// its own, varve::s3. Building it needs the headers of libcurl, and OpenSSL. The library
// libcurl.so.4 is loaded with the first such URL.
//
//   varve::UseS3();  // once, before the first such URL
#pragma once

namespace varve {

// Thread rule: any thread. Calling it again changes nothing.
void UseS3();

}  // namespace varve
