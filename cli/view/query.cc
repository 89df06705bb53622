// SPDX-License-Identifier: Apache-2.0
#include "cli/view/query.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "cli/parse.h"

namespace varve::internal::cli {
namespace {

std::vector<std::string> WordsOf(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool Contains(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

}  // namespace

std::pair<size_t, size_t> PageOfRows::Of(size_t count) const {
  const size_t begin = std::min<uint64_t>(offset, count);
  return {begin, begin + std::min<uint64_t>(limit, count - begin)};
}

Status Query::CheckNames(std::string_view known) const {
  const std::vector<std::string> words = WordsOf(known);
  for (const auto& [name, value] : values_) {
    if (Contains(words, name + "*")) continue;
    if (!Contains(words, name)) {
      return Status::InvalidArgument("there is no parameter \"" + name + "\" here; there are: " +
                                     (known.empty() ? "none" : std::string(known)));
    }
    if (values_.count(name) > 1) {
      return Status::InvalidArgument("the parameter \"" + name + "\" is there twice");
    }
  }
  return Status::Ok();
}

Result<std::string> Query::Needed(const std::string& name) const {
  std::string text = Text(name);
  if (text.empty()) return Status::InvalidArgument("the parameter \"" + name + "\" is missing");
  return text;
}

std::string Query::Text(const std::string& name, std::string fallback) const {
  const auto found = values_.find(name);
  return found == values_.end() ? fallback : found->second;
}

std::vector<std::string> Query::Texts(const std::string& name) const {
  std::vector<std::string> texts;
  const auto [begin, end] = values_.equal_range(name);
  for (auto value = begin; value != end; ++value) texts.push_back(value->second);
  return texts;
}

Result<uint64_t> Query::Number(const std::string& name, uint64_t fallback, uint64_t max) const {
  const std::string text = Text(name);
  return text.empty() ? Result<uint64_t>(fallback) : ParseNumber(name, text, max);
}

Result<bool> Query::Flag(const std::string& name) const {
  VARVE_ASSIGN_OR_RETURN(const std::string word, OneOf(name, "0 1"));
  return word == "1";
}

Result<std::string> Query::OneOf(const std::string& name, std::string_view choices) const {
  const std::vector<std::string> words = WordsOf(choices);
  const std::string text = Text(name);
  if (text.empty()) return words[0];
  if (Contains(words, text)) return text;
  return Status::InvalidArgument("the parameter \"" + name + "\" is \"" + text +
                                 "\", expected one of: " + std::string(choices));
}

Result<PageOfRows> Query::Page() const {
  PageOfRows page;
  VARVE_ASSIGN_OR_RETURN(page.offset, Number("offset", 0, UINT64_MAX));
  VARVE_ASSIGN_OR_RETURN(page.limit, Number("limit", kDefaultRows, kMaxRows));
  return page;
}

}  // namespace varve::internal::cli
