// SPDX-License-Identifier: Apache-2.0
#include "objects/url.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <optional>

#include "objects/file_objects.h"

namespace varve::internal {

namespace {

constexpr std::string_view kBetween = "://";
constexpr std::string_view kKnown[] = {"file", "s3", "rados"};
constexpr char kForms[] = "expected file:///FOLDER, s3://BUCKET/PREFIX or rados://POOL/NAMESPACE";

struct Engines {
  std::mutex mutex;
  std::map<std::string, OpenEngine, std::less<>> by_scheme = {{"file", OpenFileObjects}};
};

Engines& AllEngines() {
  static Engines engines;
  return engines;
}

bool IsScheme(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '+' || c == '-' || c == '.';
         });
}

std::optional<unsigned> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// nullopt = a percent sign is not followed by two hexadecimal digits, or stands for NUL, at which a
// path would end.
std::optional<std::string> Decode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (text.size() - i < 3) return std::nullopt;
    const auto high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (!high.has_value() || !low.has_value() || *high + *low == 0) return std::nullopt;
    decoded += static_cast<char>(*high * 16 + *low);
    i += 2;
  }
  return decoded;
}

Status ParseQuery(std::string_view text, const Status& bad,
                  std::map<std::string, std::string>* query) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('&'), text.size());
    const std::string_view pair = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equals = pair.find('=');
    const auto name = Decode(pair.substr(0, equals));
    const auto value = Decode(equals == pair.npos ? std::string_view() : pair.substr(equals + 1));
    if (!name.has_value() || name->empty() || !value.has_value()) return bad;
    if (!query->emplace(*name, *value).second) return bad;
  }
  return Status::Ok();
}

}  // namespace

bool LooksLikeUrl(std::string_view text) {
  const size_t at = text.find(kBetween);
  return at != text.npos && IsScheme(text.substr(0, at));
}

Result<ObjectsUrl> ObjectsUrl::Parse(std::string_view text) {
  const size_t at = text.find(kBetween);
  if (at == text.npos || !IsScheme(text.substr(0, at))) {
    return Status::InvalidArgument("\"" + std::string(text) + "\" is no URL, " + kForms);
  }
  ObjectsUrl url;
  url.text = text;
  for (const char c : text.substr(0, at)) {
    url.scheme += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  std::string_view rest = text.substr(at + kBetween.size());
  const size_t mark = std::min(rest.find('?'), rest.size());
  const std::string_view query = rest.substr(std::min(mark + 1, rest.size()));
  rest = rest.substr(0, mark);
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view place = rest.substr(0, slash);
  if (place.find('@') != place.npos) {
    return Status::InvalidArgument("the URL " + url.scheme +
                                   "://... holds a user or a password, "
                                   "which do not belong there: give credentials in the environment "
                                   "or in ~/.aws/credentials");
  }
  const Status bad = Status::InvalidArgument("\"" + url.text + "\": malformed, " + kForms);
  const bool has_control =
      std::any_of(text.begin(), text.end(), [](unsigned char c) { return c <= ' ' || c == 0x7f; });
  const auto decoded_place = Decode(place), decoded_path = Decode(rest.substr(slash));
  if ((has_control && url.scheme != "file") || text.find('\0') != text.npos) return bad;
  if (!decoded_place.has_value() || !decoded_path.has_value()) return bad;
  VARVE_RETURN_IF_ERROR(ParseQuery(query, bad, &url.query));
  url.place = *decoded_place;
  url.path = *decoded_path;
  if (url.scheme == "file") {
    if (!url.place.empty() || url.path.empty()) {
      return Status::InvalidArgument("\"" + url.text +
                                     "\" names no folder of this machine, expected an absolute "
                                     "path with three slashes: file:///FOLDER");
    }
    return url;
  }
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.path.starts_with('/')) url.path.erase(0, 1);
  if (url.place.empty()) return bad;
  return url;
}

void AddEngine(std::string_view scheme, OpenEngine open) {
  Engines& engines = AllEngines();
  const std::lock_guard lock(engines.mutex);
  engines.by_scheme.emplace(scheme, open);
}

Result<std::unique_ptr<Objects>> OpenObjects(std::string_view text, const ObjectsOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const ObjectsUrl url, ObjectsUrl::Parse(text));
  OpenEngine open = nullptr;
  {
    Engines& engines = AllEngines();
    const std::lock_guard lock(engines.mutex);
    const auto it = engines.by_scheme.find(url.scheme);
    if (it != engines.by_scheme.end()) open = it->second;
  }
  if (open != nullptr) return open(url, options);
  if (std::find(std::begin(kKnown), std::end(kKnown), url.scheme) != std::end(kKnown)) {
    std::string option = url.scheme;
    for (char& c : option) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return Status::Unavailable(url.text + ": this program was built without the engine for " +
                               url.scheme + ":// (VARVE_WITH_" + option + "); see docs/remote.md");
  }
  return Status::InvalidArgument(url.text + ": no engine has the scheme \"" + url.scheme + "\", " +
                                 kForms);
}

}  // namespace varve::internal
