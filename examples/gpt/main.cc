// SPDX-License-Identifier: Apache-2.0
//
// gpt_train: trains a small GPT-2 on text, saves to a varve store, resumes from it. See
// ../README.md.
#include <tbb/global_control.h>

#include <CLI/CLI.hpp>
#include <bit>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "gpt/checkpoint.h"
#include "gpt/data.h"
#include "gpt/trainer.h"

namespace gpt {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

struct Flags {
  TrainerOptions trainer;
  std::string data = "/usr/share/common-licenses";
  int64_t train_iters = 100;
  std::optional<int64_t> lr_decay_iters;
  std::string save;
  int64_t save_interval = 10;
  size_t keep_last = 0;
  std::string load;
  std::optional<uint64_t> ckpt_step;
  std::vector<std::string> dump_tensor;
  size_t threads = 0;
};

void AddFlags(CLI::App* app, Flags* flags) {
  TrainerOptions& t = flags->trainer;
  const auto add = [&](const char* name, auto& value, const char* help) {
    return app->add_option(name, value, help)->capture_default_str();
  };
  add("--data", flags->data, "Text to train on: a file, or a folder of files");
  add("--num-layers", t.model.num_layers, "Transformer blocks")->check(CLI::PositiveNumber);
  add("--hidden-size", t.model.hidden_size, "Channels")->check(CLI::PositiveNumber);
  add("--num-attention-heads", t.model.num_heads, "Heads")->check(CLI::PositiveNumber);
  add("--seq-length", t.model.seq_length, "Bytes of a sequence")->check(CLI::PositiveNumber);
  add("--micro-batch-size", t.micro_batch_size, "Sequences of a step")->check(CLI::PositiveNumber);
  add("--train-iters", flags->train_iters, "Stop after this step")->check(CLI::NonNegativeNumber);
  add("--lr", t.schedule.max_lr, "Highest learning rate")->check(CLI::NonNegativeNumber);
  add("--min-lr", t.schedule.min_lr, "Last learning rate")->check(CLI::NonNegativeNumber);
  add("--lr-warmup-iters", t.schedule.warmup_iters, "Steps of linear warm-up")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--lr-decay-iters", flags->lr_decay_iters,
                  "Step at which --min-lr is reached [--train-iters]");
  add("--weight-decay", t.adamw.weight_decay, "Of matrices only");
  add("--clip-grad", t.clip_grad, "Largest norm of the gradient")->check(CLI::PositiveNumber);
  add("--seed", t.seed, "Of weights and batches; a load brings its own generator");
  app->add_option("--save", flags->save, "Store to save to; made when it is not there");
  add("--save-interval", flags->save_interval, "Steps between saves")->check(CLI::PositiveNumber);
  add("--keep-last", flags->keep_last, "Drop all but this many newest steps; 0 keeps all");
  app->add_option("--load", flags->load, "Store to resume from; starts afresh when it has no step");
  app->add_option("--ckpt-step", flags->ckpt_step, "Step to resume from [latest]");
  app->add_option("--dump-tensor", flags->dump_tensor,
                  "NAME@STEP=FILE: write a tensor's raw bytes as they are after a step");
  add("--threads", flags->threads, "Threads; 0 uses every core");
}

// A tensor that --dump-tensor asks for.
struct Dump {
  std::string name;
  int64_t step = 0;
  std::string file;
};

varve::Result<Dump> ParseDump(const std::string& flag) {
  const size_t at = flag.find('@'), equals = flag.find('=', at);
  Dump dump;
  if (at == std::string::npos || equals == std::string::npos ||
      !CLI::detail::lexical_cast(flag.substr(at + 1, equals - at - 1), dump.step)) {
    return varve::Status::InvalidArgument("--dump-tensor wants NAME@STEP=FILE, not '" + flag + "'");
  }
  dump.name = flag.substr(0, at);
  dump.file = flag.substr(equals + 1);
  return dump;
}

varve::Status WriteDump(const Dump& dump, Trainer* trainer) {
  for (const StateTensor& tensor : trainer->Tensors()) {
    if (tensor.name != dump.name) continue;
    VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, varve::NumBytes(tensor.dtype, tensor.shape));
    std::ofstream file(dump.file, std::ios::binary);
    file.write(static_cast<const char*>(tensor.data), static_cast<std::streamsize>(bytes));
    if (!file.flush()) return varve::Status::IOError("cannot write " + dump.file);
    return varve::Status::Ok();
  }
  return varve::Status::NotFound("--dump-tensor: the trainer has no tensor '" + dump.name + "'");
}

// The step to resume from; nullopt when the store or a step of the run is not there yet, so that a
// job may be started again and again with one command line.
varve::Result<std::optional<uint64_t>> StepToLoad(const varve::Store& store, const Flags& flags) {
  if (flags.ckpt_step.has_value()) return flags.ckpt_step;
  auto latest = store.LatestStep(kRun);
  if (latest.status().code() == varve::StatusCode::kNotFound) return std::optional<uint64_t>();
  return latest;
}

varve::Status LoadIfAsked(const Flags& flags, Trainer* trainer) {
  if (flags.load.empty()) return varve::Status::Ok();
  auto store = varve::Store::OpenForReading(flags.load);
  std::optional<uint64_t> step;
  if (store.ok()) {
    VARVE_ASSIGN_OR_RETURN(step, StepToLoad(**store, flags));
  } else if (store.status().code() != varve::StatusCode::kNotFound || flags.ckpt_step) {
    return store.status();
  }
  if (!step.has_value()) {
    std::printf("nothing to load from %s: starting afresh\n", flags.load.c_str());
    return varve::Status::Ok();
  }
  const auto start = Clock::now();
  VARVE_RETURN_IF_ERROR(LoadCheckpoint(**store, *step, trainer));
  std::printf("loaded step %ld from %s ms %.1f\n", trainer->step(), flags.load.c_str(),
              Milliseconds(Clock::now() - start));
  return varve::Status::Ok();
}

void PrintStep(const StepReport& report, Clock::duration time) {
  std::printf("step %ld loss %.9g bits %08x lr %.6g grad_norm %.6g ms %.1f\n", report.step,
              report.loss, std::bit_cast<uint32_t>(report.loss), report.lr, report.grad_norm,
              Milliseconds(time));
}

varve::Status Save(varve::Store* store, const Flags& flags, Trainer* trainer) {
  std::printf("saving step %ld\n", trainer->step());
  VARVE_ASSIGN_OR_RETURN(const varve::SaveReport report, SaveCheckpoint(store, trainer));
  std::printf("saved step %lu logical_bytes %lu new_bytes %lu stored_bytes %lu ms %.1f\n",
              report.id.step, report.logical_bytes, report.new_bytes, report.stored_bytes,
              report.elapsed.count() * 1e3);
  return flags.keep_last == 0 ? varve::Status::Ok() : KeepLast(store, flags.keep_last);
}

varve::Status Train(const Flags& flags, const std::vector<Dump>& dumps, varve::Store* store,
                    Trainer* trainer) {
  while (trainer->step() < flags.train_iters) {
    const auto start = Clock::now();
    const StepReport report = trainer->Step();
    PrintStep(report, Clock::now() - start);
    for (const Dump& dump : dumps) {
      if (dump.step == report.step) VARVE_RETURN_IF_ERROR(WriteDump(dump, trainer));
    }
    const bool last = report.step == flags.train_iters;
    if (store != nullptr && (last || report.step % flags.save_interval == 0)) {
      VARVE_RETURN_IF_ERROR(Save(store, flags, trainer));
    }
  }
  return varve::Status::Ok();
}

varve::Status Run(Flags flags) {
  flags.trainer.schedule.decay_iters = flags.lr_decay_iters.value_or(flags.train_iters);
  std::vector<Dump> dumps;
  for (const std::string& flag : flags.dump_tensor) {
    VARVE_ASSIGN_OR_RETURN(Dump dump, ParseDump(flag));
    dumps.push_back(std::move(dump));
  }
  VARVE_ASSIGN_OR_RETURN(std::string text, ReadText(flags.data));
  VARVE_RETURN_IF_ERROR(ValidateOptions(flags.trainer, text));
  std::printf("text %s bytes %zu\n", flags.data.c_str(), text.size());
  Trainer trainer(flags.trainer, std::move(text));
  VARVE_RETURN_IF_ERROR(LoadIfAsked(flags, &trainer));
  std::unique_ptr<varve::Store> store;
  if (!flags.save.empty()) {
    VARVE_ASSIGN_OR_RETURN(store, varve::Store::OpenOrCreate(flags.save));
  }
  return Train(flags, dumps, store.get(), &trainer);
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  CLI::App app("Trains a small GPT-2 on text, bit for bit the same each time.");
  gpt::Flags flags;
  gpt::AddFlags(&app, &flags);
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that a killed run leaves whole lines
  std::optional<tbb::global_control> limit;
  if (flags.threads > 0) limit.emplace(tbb::global_control::max_allowed_parallelism, flags.threads);
  const varve::Status status = gpt::Run(std::move(flags));
  if (status.ok()) return 0;
  std::fprintf(stderr, "gpt_train: %s\n", status.ToString().c_str());
  return 1;
}
