// SPDX-License-Identifier: Apache-2.0
#include "cli/context.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/parse.h"
#include "cli/print.h"
#include "objects/url.h"
#include "varve/remote.h"
#include "varve/seal.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

constexpr std::string_view kRepairFolder = "~repair/";  // of what RepairStore makes

std::string Dump(const nlohmann::ordered_json& value) {
  // Names are UTF-8, but a path need not be. A replacement character beats no output at all.
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  // A terminal would obey some characters that JSON need not escape.
  static const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  return value.dump(2, ' ', /*ensure_ascii=*/is_terminal, kReplace);
}

// Indents by one level. A JSON string has no line ends of its own.
std::string Indented(std::string_view text) {
  std::string indented;
  for (const char c : text) {
    indented += c;
    if (c == '\n') indented += "  ";
  }
  return indented;
}

}  // namespace

void Context::AddGlobalOptions(CLI::App* app) {
  app->add_option("-s,--store", store_path_, "Folder of the store")
      ->type_name("PATH")
      ->envname("VARVE_STORE");
  app->add_option("--cache", cache_folder_, "With a URL as the store: keep what is fetched here")
      ->type_name("FOLDER");
  app->add_option("--cache-bytes", cache_bytes_, "The most that --cache takes, by default 4GiB")
      ->type_name("BYTES");
  key_option_ = app->add_option("--key-file", key_file_,
                                "The key of a sealed store, for check and for verbs that write")
                    ->type_name("FILE")
                    ->envname("VARVE_KEY_FILE");
  app->add_flag("--json", json_, "Print one JSON value on standard output");
  app->add_flag("-q,--quiet", quiet_, "No progress bar, remarks or summaries");
}

void Context::OnReading(CLI::App* verb, std::function<Outcome(const Store&)> run) {
  OnAnything(verb, [this, run = std::move(run)] { return ReadAnywhere(run); });
}

void Context::OnReadingWithKey(CLI::App* verb, std::function<Outcome(const Store&)> run) {
  OnAnything(verb, [this, run = std::move(run)]() -> Outcome {
    std::string path;
    if (Outcome outcome = StoreOrUrl(&path); !outcome.ok()) return outcome;
    const Result<std::string> key = ReadKey();
    if (!key.ok()) return key.status();
    if (key->empty()) return ReadAnywhere(run);
    const Result<std::unique_ptr<Store>> store = LooksLikeUrl(path)
                                                     ? OpenRemote(path, {.store = {.key = *key}})
                                                     : Store::OpenForReading(path, {.key = *key});
    return store.ok() ? run(**store) : OpenOutcome(store.status());
  });
}

void Context::OnWriting(CLI::App* verb, std::function<Outcome(Store&)> run) {
  OnAnything(verb, [this, run = std::move(run)]() -> Outcome {
    std::string path;
    if (Outcome outcome = StorePath(&path); !outcome.ok()) return outcome;
    const Result<std::unique_ptr<Store>> store = OpenForWriting(path);
    return store.ok() ? run(**store) : OpenOutcome(store.status());
  });
}

void Context::OnAnything(CLI::App* verb, std::function<Outcome()> run) {
  // CLI11 calls this while it still parses. The verb itself runs after everything is known to be
  // right.
  verb->callback([this, run = std::move(run)] { action_ = run; });
}

Outcome Context::Read(const std::function<Outcome(const Store&)>& look) const {
  std::string path;
  if (Outcome outcome = StorePath(&path); !outcome.ok()) return outcome;
  return ReadAnywhere(look);
}

Outcome Context::ReadAnywhere(const std::function<Outcome(const Store&)>& look) const {
  std::string path;
  if (Outcome outcome = StoreOrUrl(&path); !outcome.ok()) return outcome;
  const Result<std::unique_ptr<Store>> store = OpenForReading(path);
  return store.ok() ? look(**store) : OpenOutcome(store.status());
}

Result<std::unique_ptr<Store>> Context::OpenForReading(const std::string& path,
                                                       std::optional<uint64_t> snapshot) const {
  if (!LooksLikeUrl(path)) return Store::OpenForReading(path);
  RemoteStoreOptions options;
  options.snapshot = snapshot;
  options.cache_folder = cache_folder_;
  if (!cache_bytes_.empty()) {
    VARVE_ASSIGN_OR_RETURN(options.cache_bytes, ParseByteSize(cache_bytes_));
  }
  return OpenRemote(path, options);
}

Result<std::unique_ptr<Store>> Context::OpenForWriting(const std::string& path,
                                                       Absent absent) const {
  VARVE_ASSIGN_OR_RETURN(const std::string key, ReadKey());
  const StoreOptions options{.key = key};
  if (absent == Absent::kMake) return Store::OpenOrCreate(path, {.store = options});
  return Store::Open(path, options);
}

Result<std::string> Context::ReadKey() const {
  if (key_option_ == nullptr || key_option_->count() == 0) return std::string();
  if (key_file_.empty()) return Status::InvalidArgument("--key-file names no file");
  return ReadKeyFile(key_file_);
}

Outcome Context::StorePath(std::string* path) const {
  if (Outcome outcome = StoreOrUrl(path); !outcome.ok()) return outcome;
  if (!LooksLikeUrl(*path)) return {};
  return Outcome::Usage("this verb needs a folder, and " + *path +
                        " is a URL: pull it first (varve -s FOLDER pull URL)");
}

Outcome Context::StoreOrUrl(std::string* path) const {
  if (store_path_.empty()) {
    return Outcome::Usage("no store given: use -s PATH or set $VARVE_STORE");
  }
  *path = store_path_;
  return {};
}

Outcome Context::WithAdvice(const Outcome& outcome) const {
  const std::string& message = outcome.message();
  std::string advice;
  if (outcome.code() == ExitCode::kDamaged) {
    advice =
        "; varve check lists all damage, varve repair --dry-run what can be kept, and "
        "docs/operations.md says what to do";
  } else if (outcome.code() == ExitCode::kFailed && !store_path_.empty() &&
             (message.find("No space left on device") != std::string::npos ||
              message.find("Disk quota exceeded") != std::string::npos) &&
             message.find(store_path_) != std::string::npos) {
    advice = message.find(kRepairFolder) != std::string::npos
                 ? "; the store stays as it was. A repair needs room for another one beside it"
                 : "; nothing that was saved is lost: varve drop and varve forget make room";
  }
  return advice.empty() ? outcome : Outcome(outcome.code(), message + advice);
}

void Context::PrintJson(const nlohmann::ordered_json& value) const {
  PrintText(Dump(value) + "\n");
}

void Context::PrintJsonArray(
    size_t count, const std::function<nlohmann::ordered_json(size_t index)>& element) const {
  if (count == 0) return PrintJson(nlohmann::ordered_json::array());
  for (size_t i = 0; i < count; ++i) {
    PrintText(i == 0 ? "[\n  " : ",\n  ");
    PrintText(Indented(Dump(element(i))));
  }
  PrintText("\n]\n");
}

void Context::PrintText(std::string_view text) const {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void Context::Note(std::string_view text) const {
  if (!quiet_) std::fprintf(stderr, "varve: %s\n", Message(text).c_str());
}

void Context::Warn(std::span<const std::string> warnings) const {
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "varve: warning: %s\n", Message(warning).c_str());
  }
}

Outcome OpenOutcome(const Status& status) {
  if (status.code() != StatusCode::kNotFound) return status;
  return {ExitCode::kNoStore, status.message()};
}

}  // namespace varve::internal::cli
