// SPDX-License-Identifier: Apache-2.0
#include "objects/s3/credentials.h"

#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/util.h"

namespace varve::internal::s3 {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{1} << 20;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string_view Trim(std::string_view text) {
  constexpr char kSpace[] = " \t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

using Section = std::map<std::string, std::string>;

// Returns the lines "name = value" of the section "[name]". A file that cannot be read has none.
Section ReadSection(const fs::path& file, std::string_view name) {
  Section section;
  const auto text = ReadSmallFileOrPipe(file, kMaxFileBytes);
  if (!text.ok()) return section;
  bool is_in = false;
  for (std::string_view rest = *text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = Trim(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      is_in = line.back() == ']' && Trim(line.substr(1, line.size() - 2)) == name;
      continue;
    }
    const size_t equals = line.find('=');
    if (!is_in || equals == line.npos) continue;
    section.emplace(Trim(line.substr(0, equals)), Trim(line.substr(equals + 1)));
  }
  return section;
}

fs::path FileOf(const char* variable, const char* name) {
  const std::string set = Environment(variable);
  return set.empty() ? fs::path(Environment("HOME")) / ".aws" / name : fs::path(set);
}

std::string Find(const Section& section, const std::string& name) {
  const auto it = section.find(name);
  return it == section.end() ? "" : it->second;
}

std::string FirstOf(std::initializer_list<std::string> values) {
  for (const std::string& value : values) {
    if (!value.empty()) return value;
  }
  return {};
}

}  // namespace

Result<Settings> FindSettings() {
  const std::string profile = FirstOf({Environment("AWS_PROFILE"), "default"});
  const fs::path file = FileOf("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  const fs::path config_file = FileOf("AWS_CONFIG_FILE", "config");
  const Section secrets = ReadSection(file, profile);
  const Section config =
      ReadSection(config_file, profile == "default" ? profile : "profile " + profile);
  Settings settings;
  settings.region = FirstOf({Environment("AWS_REGION"), Environment("AWS_DEFAULT_REGION"),
                             Find(config, "region"), Find(secrets, "region")});
  settings.endpoint = FirstOf({Environment("AWS_ENDPOINT_URL_S3"), Environment("AWS_ENDPOINT_URL"),
                               Find(config, "endpoint_url")});
  Credentials& keys = settings.credentials;
  keys.access_key = Environment("AWS_ACCESS_KEY_ID");
  keys.secret_key = Environment("AWS_SECRET_ACCESS_KEY");
  keys.session_token = Environment("AWS_SESSION_TOKEN");
  if (keys.access_key.empty() != keys.secret_key.empty()) {
    return Status::FailedPrecondition(
        "of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set, expected both or none");
  }
  if (!keys.access_key.empty()) return settings;
  for (const Section& section : {secrets, config}) {
    if (!keys.access_key.empty() && !keys.secret_key.empty()) break;
    keys.access_key = Find(section, "aws_access_key_id");
    keys.secret_key = Find(section, "aws_secret_access_key");
    keys.session_token = Find(section, "aws_session_token");
  }
  if (!keys.access_key.empty() && !keys.secret_key.empty()) return settings;
  return Status::FailedPrecondition(
      "no credentials of S3: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set, nor does "
      "profile \"" +
      profile + "\" of " + file.string() + " or " + config_file.string() +
      " have aws_access_key_id and aws_secret_access_key");
}

}  // namespace varve::internal::s3
