// SPDX-License-Identifier: Apache-2.0
//
// The URL of a place in an object store, and the engines that open such places.
//
//   file:///FOLDER
//   s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=REGION
//   rados://POOL/NAMESPACE
//
// Thread rule: any thread. Engines are added before anything is opened.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "objects/objects.h"
#include "varve/result.h"

namespace varve::internal {

struct ObjectsUrl {
  std::string scheme;
  std::string place;                         // bucket or pool. Empty for file
  std::string path;                          // prefix, namespace or folder. Of file with its "/"
  std::map<std::string, std::string> query;  // decoded
  std::string text;                          // as it was given

  // kInvalidArgument says what is wrong, and does not repeat credentials.
  static Result<ObjectsUrl> Parse(std::string_view text);
};

// True when the text is meant to be a URL and not a path: it starts with a scheme and "://".
bool LooksLikeUrl(std::string_view text);

using OpenEngine = Result<std::unique_ptr<Objects>> (*)(const ObjectsUrl& url,
                                                        const ObjectsOptions& options);
// Makes an engine known to OpenObjects. A second call for a scheme changes nothing.
void AddEngine(std::string_view scheme, OpenEngine open);

// kInvalidArgument: the URL is wrong, or no engine has its scheme. kUnavailable: the engine exists,
// but this program was built without it, its library cannot be loaded, or the place does not
// answer.
Result<std::unique_ptr<Objects>> OpenObjects(std::string_view url,
                                             const ObjectsOptions& options = {});

}  // namespace varve::internal
