// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/item_name.h"

#include <charconv>
#include <cstddef>
#include <cstdio>

#include "varve/tensor.h"

namespace varve::internal {

namespace {

constexpr std::string_view kPrefix = "rank_";

// The number has at least five digits, so that ranks sort as numbers do.
std::string RankPrefix(uint32_t rank) {
  char text[32];
  std::snprintf(text, sizeof(text), "%s%05u/", kPrefix.data(), rank);
  return text;
}

}  // namespace

Result<std::string> EncodeItemName(const ItemName& item) {
  VARVE_RETURN_IF_ERROR(ValidateName("item name", item.name));
  std::string stored = item.rank.has_value() ? RankPrefix(*item.rank) : std::string();
  stored += item.name;
  VARVE_RETURN_IF_ERROR(ValidateName("item name", stored));
  if (!(DecodeItemName(stored) == item)) {
    return Status::InvalidArgument("item name \"" + std::string(item.name) +
                                   "\" is kept for an item of a rank, expected another for an "
                                   "item of the whole job");
  }
  return stored;
}

ItemName DecodeItemName(std::string_view stored) {
  ItemName whole{stored, std::nullopt};
  if (!stored.starts_with(kPrefix)) return whole;
  const std::string_view rest = stored.substr(kPrefix.size());
  uint32_t rank = 0;
  const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), rank);
  if (parsed.ec != std::errc()) return whole;
  const std::string prefix = RankPrefix(rank);
  if (!stored.starts_with(prefix) || stored.size() == prefix.size()) return whole;
  return {stored.substr(prefix.size()), rank};
}

}  // namespace varve::internal
