// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/strict_json.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace varve::internal::formats {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 16;
constexpr char kTooDeep[] = "it is nested too deeply";

// nlohmann's messages start with a code in brackets, which tells a user nothing.
std::string WithoutCode(const std::string& what) {
  const size_t end = what.find("] ");
  return end == std::string::npos ? what : what.substr(end + 2);
}

// Builds the document from the parser's events. Each value goes to its place when it comes, so the
// time is linear. nlohmann's parser with a callback looks through all members of an object at the
// end of each one. A value that is too deep ends the parse before it is kept, so a file of brackets
// costs no memory.
class StrictBuilder final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value)) return Fail("the number " + text + " is too large");
    return Add(value);
  }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& value) override { return Add(std::move(value)); }
  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& key) override {
    const auto [member, is_new] = open_.back()->emplace(std::move(key), nullptr);
    if (!is_new) return Fail("the key \"" + member.key() + "\" comes twice");
    member_ = &*member;
    return true;
  }

  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    return Fail("not JSON: " + WithoutCode(error.what()));
  }

  const std::string& problem() const { return problem_; }
  json TakeRoot() { return std::move(root_); }

 private:
  bool Fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  // Returns where the next value belongs: the document, the end of the open array, or the member
  // whose key came last.
  json* Place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    *member_ = std::move(value);
    return member_;
  }

  bool Add(json value) {
    if (open_.size() > kMaxDepth) return Fail(kTooDeep);
    Place(std::move(value));
    return true;
  }

  bool Open(json value) {
    if (open_.size() > kMaxDepth) return Fail(kTooDeep);
    open_.push_back(Place(std::move(value)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  json root_;
  // The objects and arrays that are open, outermost first. A parent does not change while its child
  // is open, so that the pointers hold.
  std::vector<json*> open_;
  json* member_ = nullptr;
  std::string problem_;
};

}  // namespace

Result<json> ParseStrictJson(std::string_view text) {
  // nlohmann's parser takes a NUL for the end of the text and would not check what follows.
  if (text.find('\0') != std::string_view::npos) {
    return Status::InvalidArgument("not JSON: it holds a NUL byte");
  }
  StrictBuilder builder;
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return Status::InvalidArgument(builder.problem());
  }
  return builder.TakeRoot();
}

}  // namespace varve::internal::formats
