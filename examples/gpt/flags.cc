// SPDX-License-Identifier: Apache-2.0
#include "gpt/flags.h"

#include <algorithm>

namespace gpt {
namespace {

void AddModelFlags(CLI::App* app, Flags* flags) {
  TrainerOptions& t = flags->trainer;
  const auto add = [&](const char* name, auto& value, const char* help) {
    return app->add_option(name, value, help)->capture_default_str();
  };
  add("--data", flags->data, "Text to train on: a file, or a folder of files");
  add("--num-layers", t.model.num_layers, "Transformer blocks")->check(CLI::PositiveNumber);
  add("--hidden-size", t.model.hidden_size, "Channels")->check(CLI::PositiveNumber);
  add("--num-attention-heads", t.model.num_heads, "Heads")->check(CLI::PositiveNumber);
  add("--seq-length", t.model.seq_length, "Bytes of a sequence")->check(CLI::PositiveNumber);
  const auto set_precision = [&t](Precision to) { return [&t, to] { t.precision = to; }; };
  auto* bf16 = app->add_flag_callback("--bf16", set_precision(Precision::kBf16),
                                      "bf16 weights with fp32 masters (the default)");
  app->add_flag_callback("--fp32", set_precision(Precision::kFp32), "fp32 weights, no masters")
      ->excludes(bf16);
  add("--threads", flags->threads, "Threads; 0 uses every core");
}

void AddTrainingFlags(CLI::App* app, Flags* flags) {
  TrainerOptions& t = flags->trainer;
  const auto add = [&](const char* name, auto& value, const char* help) {
    return app->add_option(name, value, help)->capture_default_str();
  };
  add("--train-iters", flags->train_iters, "Stop after this step")->check(CLI::NonNegativeNumber);
  add("--micro-batch-size", flags->micro_batch_size, "Samples of a step")
      ->check(CLI::PositiveNumber);
  add("--lr", t.schedule.max_lr, "Highest learning rate")->check(CLI::NonNegativeNumber);
  add("--min-lr", t.schedule.min_lr, "Last learning rate")->check(CLI::NonNegativeNumber);
  add("--lr-warmup-iters", t.schedule.warmup_iters, "Steps of linear warm-up")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--lr-decay-iters", flags->lr_decay_iters,
                  "Step at which --min-lr is reached [--train-iters]");
  add("--weight-decay", t.adamw.weight_decay, "Of matrices only");
  add("--clip-grad", t.clip_grad, "Largest norm of the gradient")->check(CLI::PositiveNumber);
  add("--dropout", t.dropout, "Of the embeddings, below 1")->check(CLI::Range(0.0, 0.99));
  add("--seed", t.seed, "Of weights, samples and dropout");
}

void AddRankFlags(CLI::App* app, Flags* flags) {
  Topology& topology = flags->topology;
  topology.dp = 0;
  app->add_option("--tensor-model-parallel-size,--tp", topology.tp, "Ranks that share each layer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app->add_option("--pipeline-model-parallel-size,--pp", topology.pp, "Stages of layers")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app->add_option("--data-parallel-size,--dp", topology.dp,
                  "Copies of the model, which share the samples [all ranks / tp / pp]")
      ->check(CLI::PositiveNumber);
  app->add_flag("--use-distributed-optimizer,--zero", topology.zero,
                "The copies share the optimizer's state (ZeRO-1)");
  app->add_option("--spawn", flags->num_spawned, "Start so many ranks on this machine")
      ->check(CLI::PositiveNumber);
}

// "2@40": true when both numbers are there.
bool ParseSwitch(const std::string& text, BatchSwitch* out) {
  const size_t at = text.find('@');
  return at != std::string::npos && CLI::detail::lexical_cast(text.substr(0, at), out->size) &&
         CLI::detail::lexical_cast(text.substr(at + 1), out->step) && out->size > 0;
}

// "NAME@STEP=FILE"
bool ParseDump(const std::string& text, Dump* out) {
  const size_t at = text.find('@'), equals = text.find('=', at);
  if (at == std::string::npos || equals == std::string::npos) return false;
  out->name = text.substr(0, at);
  out->file = text.substr(equals + 1);
  return CLI::detail::lexical_cast(text.substr(at + 1, equals - at - 1), out->step);
}

void AddTestFlags(CLI::App* app, Flags* flags) {
  const auto parse_switch = [flags](const CLI::results_t& values) {
    return ParseSwitch(values.back(), &flags->batch_switch.emplace());
  };
  app->add_option("--switch-batch-size", parse_switch,
                  "From the step after STEP on, so many samples a step")
      ->type_name("SIZE@STEP");
  const auto parse_dumps = [flags](const CLI::results_t& values) {
    return std::all_of(values.begin(), values.end(), [flags](const std::string& text) {
      return ParseDump(text, &flags->dumps.emplace_back());
    });
  };
  app->add_option("--dump-tensor", parse_dumps,
                  "Write a tensor's raw bytes as they are after a step")
      ->type_name("NAME@STEP=FILE")
      ->expected(1, -1);
  app->add_flag_callback(
      "--no-optimizer-hint", [flags] { flags->trainer.tells_step = false; },
      "Do not tell a save what the optimizer did");
}

// Any argument parser will do: each flag says its name, whether a value follows, and how to set it.
void AddCheckpointFlags(CLI::App* app, varve::CheckpointFlags* flags) {
  for (const varve::FlagSpec& flag : varve::CheckpointFlagSpecs(flags)) {
    const auto set = [flag](const std::string& value) {
      const varve::Status status = flag.set(value);
      if (!status.ok()) throw CLI::ValidationError(status.message());
    };
    if (flag.value.empty()) {
      app->add_flag_callback(
          flag.name, [set] { set(""); }, flag.help);
    } else {
      app->add_option_function<std::string>(flag.name, set, flag.help)->type_name(flag.value);
    }
  }
}

}  // namespace

void AddFlags(CLI::App* app, Flags* flags) {
  AddModelFlags(app, flags);
  AddTrainingFlags(app, flags);
  AddRankFlags(app, flags);
  AddCheckpointFlags(app, &flags->checkpoint);
  AddTestFlags(app, flags);
}

varve::Result<Topology> TopologyOf(const Flags& flags, int num_ranks) {
  Topology topology = flags.topology;
  const auto invalid = [](const std::string& message) {
    return varve::Status::InvalidArgument(message);
  };
  const int of_model = topology.tp * topology.pp;
  if (topology.dp == 0) topology.dp = std::max(1, num_ranks / of_model);
  if (topology.size() != num_ranks) {
    return invalid(std::to_string(num_ranks) + " ranks are not --tp " +
                   std::to_string(topology.tp) + " x --pp " + std::to_string(topology.pp) +
                   " x --dp " + std::to_string(topology.dp));
  }
  const int batch_size = flags.micro_batch_size;
  const int later = flags.batch_switch.has_value() ? flags.batch_switch->size : batch_size;
  if (batch_size % topology.dp != 0 || later % topology.dp != 0) {
    return invalid(std::to_string(topology.dp) + " data parallel ranks cannot share the " +
                   std::to_string(batch_size % topology.dp != 0 ? batch_size : later) +
                   " samples of a step equally");
  }
  return topology;
}

int BatchSizeAt(const Flags& flags, int64_t step) {
  const auto& change = flags.batch_switch;
  return change.has_value() && step > change->step ? change->size : flags.micro_batch_size;
}

}  // namespace gpt
