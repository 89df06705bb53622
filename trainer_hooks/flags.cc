// SPDX-License-Identifier: Apache-2.0
#include "varve/flags.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

namespace varve {
namespace {

Status BadValue(const std::string& flag, std::string_view value, const std::string& expected) {
  return Status::InvalidArgument(flag + " wants " + expected + ", not \"" + std::string(value) +
                                 "\"");
}

template <typename T>
Status ParseNumber(const std::string& flag, std::string_view text, const std::string& expected,
                   T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error == std::errc() && end == text.data() + text.size()) return Status::Ok();
  return BadValue(flag, text, expected);
}

constexpr const char* kDurations = "more than 0, at most 1e9";
bool IsDuration(double number) { return number > 0 && number <= 1e9; }

// Builds the table. Each function adds one kind of flag.
class Specs {
 public:
  void Text(const std::string& name, const std::string& value, const std::string& help,
            std::string* out) {
    Add(name, value, help, [name, value, out](std::string_view text) {
      if (text.empty()) return BadValue(name, text, "a " + value);
      *out = text;
      return Status::Ok();
    });
  }
  template <typename Number>
  void Count(const std::string& name, const std::string& value, const std::string& help,
             Number* out) {
    Add(name, value, help, [name, out](std::string_view text) {
      uint64_t number = 0;
      VARVE_RETURN_IF_ERROR(ParseNumber(name, text, "a whole number", &number));
      *out = number;
      return Status::Ok();
    });
  }
  void Positive(const std::string& name, const std::string& value, const std::string& help,
                std::optional<double>* out) {
    Add(name, value, help, [name, out](std::string_view text) {
      double number = 0;
      VARVE_RETURN_IF_ERROR(ParseNumber(name, text, "a number", &number));
      if (!IsDuration(number)) return BadValue(name, text, kDurations);
      *out = number;
      return Status::Ok();
    });
  }
  void Switch(const std::string& name, const std::string& help, bool* out, bool to) {
    Add(name, "", help, [name, out, to](std::string_view text) {
      if (!text.empty()) return BadValue(name, text, "no value");
      *out = to;
      return Status::Ok();
    });
  }
  void Add(std::string name, std::string value, std::string help,
           std::function<Status(std::string_view)> set) {
    specs_.push_back({std::move(name), std::move(value), std::move(help), std::move(set)});
  }
  std::vector<FlagSpec> Take() { return std::move(specs_); }

 private:
  std::vector<FlagSpec> specs_;
};

Status ParseKeepBest(std::string_view text, std::optional<KeepBest>* out) {
  KeepBest best;
  for (const std::string_view direction : {":max", ":min"}) {
    if (!text.ends_with(direction)) continue;
    best.highest = direction == ":max";
    text.remove_suffix(direction.size());
    break;
  }
  if (text.empty()) return BadValue("--keep-best", text, "a metric, as in loss or accuracy:max");
  best.metric = text;
  *out = best;
  return Status::Ok();
}

Status Needs(bool is_set, const std::string& flag, bool has, const std::string& other,
             const std::string& why) {
  if (!is_set || has) return Status::Ok();
  return Status::InvalidArgument(flag + " needs " + other + ", " + why);
}

Status ValidateSaving(const CheckpointFlags& f) {
  const bool saves = !f.save.empty();
  VARVE_RETURN_IF_ERROR(Needs(saves, "--save", f.save_interval.has_value() || f.durable_every_step,
                              "--save-interval",
                              "which says after how many steps to save, or --durable-every-step"));
  VARVE_RETURN_IF_ERROR(Needs(f.durable_every_step, "--durable-every-step", saves, "--save",
                              "which says where to save"));
  if (f.durable_every_step && f.save_interval.value_or(1) != 1) {
    return Status::InvalidArgument("--durable-every-step saves each step, and --save-interval is " +
                                   std::to_string(*f.save_interval) + ": leave one of them out");
  }
  VARVE_RETURN_IF_ERROR(Needs(f.save_interval.has_value(), "--save-interval", saves, "--save",
                              "which says where to save"));
  if (f.save_interval == uint64_t{0}) {
    return Status::InvalidArgument(
        "--save-interval must be at least 1; leave it and --save out to save nothing");
  }
  const std::string where = "which says where to save";
  VARVE_RETURN_IF_ERROR(Needs(!f.save_optim, "--no-save-optim", saves, "--save", where));
  VARVE_RETURN_IF_ERROR(
      Needs(f.max_checkpoint_keep > 0, "--max-checkpoint-keep", saves, "--save", where));
  const std::string why = "for without it nothing is ever dropped";
  const bool drops = f.max_checkpoint_keep > 0;
  VARVE_RETURN_IF_ERROR(
      Needs(f.keep_every > 0, "--keep-every", drops, "--max-checkpoint-keep", why));
  VARVE_RETURN_IF_ERROR(
      Needs(f.keep_best.has_value(), "--keep-best", drops, "--max-checkpoint-keep", why));
  VARVE_RETURN_IF_ERROR(Needs(!f.remote.empty(), "--remote", saves, "--save", where));
  const bool sends = !f.remote.empty();
  const std::string whither = "which says where to send";
  VARVE_RETURN_IF_ERROR(
      Needs(f.remote_interval != 1, "--remote-interval", sends, "--remote", whither));
  VARVE_RETURN_IF_ERROR(Needs(f.remote_keep > 0, "--remote-keep", sends, "--remote", whither));
  if (f.remote_interval == 0) {
    return Status::InvalidArgument("--remote-interval must be at least 1");
  }
  return Needs(f.exit_deadline_in_secs.has_value(), "--exit-deadline-in-secs", saves, "--save",
               where);
}

Status ValidateLoading(const CheckpointFlags& f) {
  const bool loads = !f.load.empty();
  const std::string where = "which says where to load from";
  VARVE_RETURN_IF_ERROR(Needs(!f.ckpt_step.empty(), "--ckpt-step", loads, "--load", where));
  VARVE_RETURN_IF_ERROR(Needs(!f.load_optim, "--no-load-optim", loads, "--load", where));
  VARVE_RETURN_IF_ERROR(Needs(f.finetune, "--finetune", loads, "--load", where));
  return Needs(f.exit_on_missing_checkpoint, "--exit-on-missing-checkpoint", loads, "--load",
               where);
}

}  // namespace

std::vector<FlagSpec> CheckpointFlagSpecs(CheckpointFlags* flags) {
  CheckpointFlags& f = *flags;
  Specs specs;
  specs.Text("--save", "FOLDER", "Store to save to; made if it is missing", &f.save);
  specs.Count("--save-interval", "STEPS", "Save every so many steps, and at the last one",
              &f.save_interval);
  specs.Switch("--durable-every-step", "The same as --save-interval 1", &f.durable_every_step,
               true);
  specs.Text("--run", "NAME", "Run of the store that is saved to and loaded from [main]", &f.run);
  specs.Switch("--no-save-optim", "Save no optimizer state", &f.save_optim, false);
  specs.Switch("--async-save", "Save in the background of the next steps (the default)",
               &f.async_save, true);
  specs.Switch("--no-async-save", "Wait until each save is durable", &f.async_save, false);
  specs.Count("--max-checkpoint-keep", "K",
              "Drop all but the newest K steps, and tagged ones; 0 keeps all [0]",
              &f.max_checkpoint_keep);
  specs.Count("--keep-every", "STEPS", "Besides the newest K, keep multiples of this",
              &f.keep_every);
  specs.Add("--keep-best", "METRIC[:max]",
            "Besides the newest K, keep the step with the lowest (:max: the highest) value",
            [&f](std::string_view text) { return ParseKeepBest(text, &f.keep_best); });
  specs.Text("--remote", "URL",
             "Object store that saved steps are sent to; a --save without a store is fetched there",
             &f.remote);
  specs.Count("--remote-interval", "SAVES", "Send every SAVES-th save, and the last one [1]",
              &f.remote_interval);
  specs.Count("--remote-keep", "K", "Keep the newest K snapshots there; 0 keeps all [0]",
              &f.remote_keep);
  specs.Text("--load", "FOLDER", "Store to load from; starts afresh when it has no step", &f.load);
  specs.Text("--ckpt-step", "[RUN@]STEP", "Step to load: a number, a tag, best:METRIC [latest]",
             &f.ckpt_step);
  specs.Switch("--no-load-optim", "Load no optimizer state; masters are made from the weights",
               &f.load_optim, false);
  specs.Switch("--finetune", "Load no optimizer state; step, schedule and items stay as they are",
               &f.finetune, true);
  specs.Switch("--exit-on-missing-checkpoint", "Fail when there is nothing to load",
               &f.exit_on_missing_checkpoint, true);
  specs.Add("--dist-ckpt-strictness", "MODE",
            "raise_all, log_unexpected, assume_ok_unexpected or ignore_all [raise_all]",
            [&f](std::string_view text) -> Status {
              VARVE_ASSIGN_OR_RETURN(f.strictness, ParseStrictness(text));
              return Status::Ok();
            });
  specs.Count("--exit-interval", "STEPS", "Save and stop at a multiple of this", &f.exit_interval);
  specs.Positive("--exit-duration-in-mins", "MINUTES", "Save and stop after this time",
                 &f.exit_duration_in_mins);
  specs.Positive("--exit-deadline-in-secs", "SECONDS",
                 "From SIGTERM or SIGUSR1 until the machine goes; saves uncompressed if it must",
                 &f.exit_deadline_in_secs);
  specs.Positive("--rank-timeout-in-secs", "SECONDS",
                 "Give up when another rank does not come for so long [120]",
                 &f.rank_timeout_in_secs);
  return specs.Take();
}

namespace {

const FlagSpec* FindFlag(const std::vector<FlagSpec>& specs, std::string_view name) {
  const auto is_it = [name](const FlagSpec& spec) { return spec.name == name; };
  const auto found = std::find_if(specs.begin(), specs.end(), is_it);
  return found == specs.end() ? nullptr : &*found;
}

// Sets the flag that the words begin with. Returns how many words it took, 0 = none is a flag.
Result<size_t> TakeFlag(const std::vector<FlagSpec>& specs, std::span<char* const> words) {
  const std::string_view word = words[0];
  const size_t equals = word.find('=');
  const FlagSpec* const flag = FindFlag(specs, word.substr(0, equals));
  if (flag == nullptr) return size_t{0};
  if (equals != std::string_view::npos) {
    const std::string_view value = word.substr(equals + 1);
    if (flag->value.empty() && value.empty()) return BadValue(flag->name, "=", "no value");
    VARVE_RETURN_IF_ERROR(flag->set(value));
    return size_t{1};
  }
  if (flag->value.empty()) {
    VARVE_RETURN_IF_ERROR(flag->set(""));
    return size_t{1};
  }
  if (words.size() < 2) {
    return Status::InvalidArgument(flag->name + " is the last word, expected " + flag->value +
                                   " after it");
  }
  const std::string_view value = words[1];
  if (value.starts_with("--")) {
    return Status::InvalidArgument(flag->name + " is followed by \"" + std::string(value) +
                                   "\", expected " + flag->value + "; write " + flag->name +
                                   "=VALUE for a value that begins with --");
  }
  VARVE_RETURN_IF_ERROR(flag->set(value));
  return size_t{2};
}

}  // namespace

Status TakeCheckpointFlags(int* argc, char** argv, CheckpointFlags* flags) {
  if (argc == nullptr || argv == nullptr || flags == nullptr || *argc < 0) {
    return Status::InvalidArgument("argc, argv and flags must not be null, nor *argc negative");
  }
  const std::span<char* const> words(argv, static_cast<size_t>(*argc));
  CheckpointFlags read = *flags;
  const std::vector<FlagSpec> specs = CheckpointFlagSpecs(&read);
  std::vector<char*> others;
  for (size_t i = 0; i < words.size();) {
    if (words[i] == nullptr) return Status::InvalidArgument("argv has a null before argc");
    const bool is_end = i > 0 && std::string_view(words[i]) == "--";
    if (is_end) {
      others.insert(others.end(), words.begin() + static_cast<ptrdiff_t>(i), words.end());
      break;
    }
    size_t taken = 0;
    if (i > 0) {
      VARVE_ASSIGN_OR_RETURN(taken, TakeFlag(specs, words.subspan(i)));
    }
    if (taken == 0) others.push_back(words[i]);
    i += std::max<size_t>(taken, 1);
  }
  *flags = std::move(read);
  std::copy(others.begin(), others.end(), argv);
  if (others.size() < words.size()) argv[others.size()] = nullptr;
  *argc = static_cast<int>(others.size());
  return Status::Ok();
}

Status ValidateFlags(const CheckpointFlags& flags) {
  VARVE_RETURN_IF_ERROR(ValidateRun(flags.run));
  VARVE_RETURN_IF_ERROR(ValidateSaving(flags));
  VARVE_RETURN_IF_ERROR(ValidateLoading(flags));
  if (flags.exit_interval == uint64_t{0}) {
    return Status::InvalidArgument("--exit-interval must be at least 1");
  }
  const std::pair<const char*, std::optional<double>> durations[] = {
      {"--exit-duration-in-mins", flags.exit_duration_in_mins},
      {"--exit-deadline-in-secs", flags.exit_deadline_in_secs},
      {"--rank-timeout-in-secs", flags.rank_timeout_in_secs}};
  for (const auto& [name, value] : durations) {
    if (!value.has_value() || IsDuration(*value)) continue;
    return BadValue(name, std::to_string(*value), kDurations);
  }
  return Status::Ok();
}

std::optional<RetentionPolicy> RetentionOf(const CheckpointFlags& flags) {
  if (flags.max_checkpoint_keep == 0) return std::nullopt;
  RetentionPolicy policy{
      .keep_last = flags.max_checkpoint_keep, .keep_every = flags.keep_every, .keep_tags = {"*"}};
  if (flags.keep_best.has_value()) policy.keep_best.push_back(*flags.keep_best);
  return policy;
}

}  // namespace varve
