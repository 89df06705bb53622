// SPDX-License-Identifier: Apache-2.0
//
// What all verbs share: the global options, opening the store, and where output goes. A verb
// registers its options with CLI11 and one function to run:
//
//   auto options = std::make_shared<LsOptions>();
//   CLI::App* verb = app.add_subcommand("ls", "List the tensors of a checkpoint");
//   verb->add_option("STEP", options->step, kStepHelp)->required();
//   context.OnReading(verb, [&context, options](const Store& store) {
//     return RunLs(context, store, *options);
//   });
//
// Thread rule: one thread.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "cli/outcome.h"
#include "varve/options.h"
#include "varve/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace varve {
class Store;
}

namespace varve::internal::cli {

// The help text of a STEP argument.
inline constexpr char kStepHelp[] =
    "number, latest, best:METRIC[:max] or tag; as RUN@STEP for another run than main";

class Context {
 public:
  // Adds the options that come before (or after) any verb.
  void AddGlobalOptions(CLI::App* app);

  // Sets what runs when the user asks for `verb`. With OnReading the store is open for reading,
  // and a writer may be at work. With OnWriting the verb is its only writer. With
  // OnAnything no store is opened.
  void OnReading(CLI::App* verb, std::function<Outcome(const Store&)> run);
  // The same with the key that was given: what is sealed can be verified.
  void OnReadingWithKey(CLI::App* verb, std::function<Outcome(const Store&)> run);
  void OnWriting(CLI::App* verb, std::function<Outcome(Store&)> run);
  void OnAnything(CLI::App* verb, std::function<Outcome()> run);

  // Opens the store for reading, runs `look`, and closes the store. It is for verbs that then act
  // without the store.
  Outcome Read(const std::function<Outcome(const Store&)>& look) const;
  // The same for verbs that only read. The store may be the URL of an object store.
  Outcome ReadAnywhere(const std::function<Outcome(const Store&)>& look) const;
  // Opens any store for reading: a folder, or the URL of an object store. There it opens this
  // snapshot, or the newest one.
  Result<std::unique_ptr<Store>> OpenForReading(const std::string& path,
                                                std::optional<uint64_t> snapshot = {}) const;
  // Opens a store as its only writer, with the key that was given. kMake: makes it if there is
  // none.
  enum class Absent { kError, kMake };
  Result<std::unique_ptr<Store>> OpenForWriting(const std::string& path,
                                                Absent absent = Absent::kError) const;
  // Reads the key of --key-file. Empty: none was given. kInvalidArgument: a name was given, and it
  // is empty.
  Result<std::string> ReadKey() const;
  // The name of that file. Empty: none was given.
  const std::string& key_file() const { return key_file_; }

  // Returns the outcome, with advice on what to do next after damage, and after the disk of the
  // store is full.
  Outcome WithAdvice(const Outcome& outcome) const;

  // Runs what the command line asked for. Precondition: the command line was parsed and names a
  // verb.
  Outcome Run() const { return action_(); }

  bool json() const { return json_; }
  bool quiet() const { return quiet_; }
  // Returns a usage error when neither the option nor $VARVE_STORE gives a path, or when it is the
  // URL of an object store.
  Outcome StorePath(std::string* path) const;
  // The same for verbs that know what to do with a URL.
  Outcome StoreOrUrl(std::string* path) const;

  // Prints the result of a verb on standard output, as JSON or as text.
  void PrintJson(const nlohmann::ordered_json& value) const;
  // Prints an array of `count` elements as PrintJson would. It makes and writes one element after
  // the other, so it needs the memory of one, however many there are.
  void PrintJsonArray(size_t count,
                      const std::function<nlohmann::ordered_json(size_t index)>& element) const;
  void PrintText(std::string_view text) const;
  // Prints a remark for people on standard error, or nothing with --quiet.
  void Note(std::string_view text) const;
  // Prints what a report warns of on standard error, a line for each. Also with --quiet and --json,
  // because it tells of damage.
  void Warn(std::span<const std::string> warnings) const;

 private:
  std::string store_path_;
  std::string cache_folder_;
  std::string cache_bytes_;
  std::string key_file_;
  const CLI::Option* key_option_ = nullptr;
  bool json_ = false;
  bool quiet_ = false;
  std::function<Outcome()> action_;
};

// Maps an error of Store::Open and similar functions. "Not found" then means that there is no
// store.
Outcome OpenOutcome(const Status& status);

}  // namespace varve::internal::cli
