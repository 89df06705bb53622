// SPDX-License-Identifier: Apache-2.0
#include "store/format/root_digest.h"

#include "store/format/keys.h"

namespace varve::internal {

void AppendToRoot(std::string_view name, uint32_t shard, const TensorRecordView& record,
                  std::string* root) {
  root->append(name);
  root->push_back('\0');
  *root += keys::RunPrefix(shard);
  root->push_back(static_cast<char>(record.dtype));
  for (const int64_t d : record.shape) *root += EncodeNumber(static_cast<uint64_t>(d));
  if (record.layout != nullptr) *root += ToString(*record.layout);
  keys::AppendIndex(record.content, root);
}

}  // namespace varve::internal
