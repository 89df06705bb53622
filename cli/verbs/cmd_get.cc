// SPDX-License-Identifier: Apache-2.0
//
// varve get: one tensor, or a slice of it, as a file or for people to look at.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/formats/npy.h"
#include "cli/formats/output_file.h"
#include "cli/formats/safetensors.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "cli/slice.h"
#include "cli/tensor_stream.h"
#include "cli/verbs/reports.h"
#include "cli/verbs/tensor_summary.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using formats::OutputFile;
using nlohmann::ordered_json;

struct GetOptions : TensorChoice {
  std::string step;
  std::string num_values;  // empty = a line of them
  std::filesystem::path out;
  std::string format;  // empty = by the ending of `out`
  bool force = false;
};

constexpr uint64_t kMaxValues = 1'000'000;  // as many as anyone looks at; -o has no limit

bool ToStandardOutput(const GetOptions& options) { return options.out == "-"; }

Result<TensorInfo> FindTensor(const ShardedReader& reader, const TensorChoice& options) {
  if (!options.shard.empty()) {
    VARVE_ASSIGN_OR_RETURN(const uint64_t shard, ParseNumber("--shard", options.shard, UINT32_MAX));
    return reader.Find(options.name, static_cast<uint32_t>(shard));
  }
  // A name with a star finds others, too.
  VARVE_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, reader.ListMatching(options.name));
  std::erase_if(tensors, [&](const TensorInfo& tensor) { return tensor.name != options.name; });
  if (tensors.empty()) return reader.Find(options.name);
  if (tensors.size() == 1) return tensors[0];
  std::vector<std::string> numbers;
  for (const TensorInfo& tensor : tensors) numbers.push_back(std::to_string(tensor.shard));
  return Status::InvalidArgument("tensor \"" + options.name + "\" is saved in the shards " +
                                 Join(numbers, ", ") + "; choose one with --shard");
}

ordered_json Describe(const TensorInfo& tensor) {
  return {{"name", tensor.name},
          {"dtype", DTypeName(tensor.dtype)},
          {"shape", tensor.shape},
          {"logical_bytes", tensor.logical_bytes}};
}

}  // namespace

Result<Selection> SelectTensor(const ShardedReader& reader, const TensorChoice& choice) {
  Selection selection;
  VARVE_ASSIGN_OR_RETURN(selection.tensor, FindTensor(reader, choice));
  VARVE_ASSIGN_OR_RETURN(const Slice slice, ParseSlice(choice.slice, selection.tensor.shape));
  selection.ranges = slice.ranges;
  selection.result = {
      {.name = selection.tensor.name, .dtype = selection.tensor.dtype, .shape = slice.shape}};
  VARVE_ASSIGN_OR_RETURN(selection.result.logical_bytes,
                         NumBytes(selection.tensor.dtype, slice.shape));
  return selection;
}

ordered_json ToJson(const TensorInfo& tensor, const TensorSummary& summary) {
  ordered_json object = Describe(tensor);
  object.update(summary.ToJson());
  return object;
}

namespace {

Status Stream(const Context& context, const CheckpointReader& reader, const Selection& selection,
              const TensorStream::Sink& sink) {
  ProgressBar progress("get", context.quiet());
  uint64_t done = 0;
  TensorStream stream(reader, [&](std::span<const std::byte> bytes) {
    done += bytes.size();
    progress.Update(done, selection.result.logical_bytes);
    return sink(bytes);
  });
  VARVE_RETURN_IF_ERROR(stream.Add(selection.tensor, selection.ranges));
  return stream.Finish();
}

Outcome Summarize(const Context& context, const CheckpointReader& reader,
                  const Selection& selection, const GetOptions& options) {
  uint64_t num_values = TensorSummary::kDefaultValues;
  if (!options.num_values.empty()) {
    const auto parsed = ParseNumber("--values", options.num_values, kMaxValues);
    if (!parsed.ok()) return parsed.status();
    num_values = *parsed;
  }
  TensorSummary summary(selection.tensor.dtype, num_values);
  const Status status = Stream(context, reader, selection, [&](std::span<const std::byte> bytes) {
    summary.Add(bytes);
    return Status::Ok();
  });
  if (!status.ok()) return status;
  const TensorInfo& result = selection.result;
  if (context.json()) {
    context.PrintJson(ToJson(result, summary));
    return {};
  }
  // A line for each row of the last axis, where there is one.
  const uint64_t row = result.shape.empty() ? 1 : static_cast<uint64_t>(result.shape.back());
  context.PrintText("name    " + Printable(result.name) + "\ndtype   " +
                    std::string(DTypeName(result.dtype)) + "\nshape   " + HumanShape(result.shape) +
                    "\nbytes   " + HumanBytes(result.logical_bytes) + "\n" +
                    (options.num_values.empty() ? summary.ToText() : summary.ToText(row)));
  return {};
}

// The format to write: npy, safetensors or bin.
Result<std::string> FormatOf(const GetOptions& options) {
  if (!options.format.empty()) return options.format;
  if (ToStandardOutput(options)) return std::string("bin");
  const std::string ending = options.out.extension().string();
  for (const char* const format : {"npy", "safetensors", "bin"}) {
    if (ending == "." + std::string(format)) return std::string(format);
  }
  return Status::InvalidArgument("the output must end in .npy, .safetensors or .bin, not in \"" +
                                 ending + "\", or --format must say what it is");
}

// What precedes the tensor's bytes in a file of this format.
Result<std::string> FileHeader(const Context& context, const std::string& format,
                               const TensorInfo& tensor) {
  if (format == "bin") return std::string();
  if (format == "safetensors") return formats::BuildSafetensorsHeader({{tensor}}, {});
  const formats::NpyType type = formats::NpyTypeOf(tensor.dtype, tensor.shape);
  if (!type.exact) {
    context.Note("NumPy has no " + std::string(DTypeName(tensor.dtype)) +
                 ": its raw bits are written as unsigned integers (" + type.descr + ")");
  }
  return formats::BuildNpyHeader(type);
}

Status WriteFile(const Context& context, const CheckpointReader& reader, const Selection& selection,
                 const GetOptions& options) {
  VARVE_ASSIGN_OR_RETURN(const std::string format, FormatOf(options));
  VARVE_ASSIGN_OR_RETURN(const std::string header, FileHeader(context, format, selection.result));
  VARVE_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(options.out, options.force));
  VARVE_RETURN_IF_ERROR(file.Append(header));
  VARVE_RETURN_IF_ERROR(Stream(context, reader, selection, [&](std::span<const std::byte> bytes) {
    return file.Append(bytes);
  }));
  return file.Commit();
}

Outcome Save(const Context& context, const CheckpointReader& reader, const Selection& selection,
             const GetOptions& options) {
  const Status status = WriteFile(context, reader, selection, options);
  if (status.code() == StatusCode::kAlreadyExists) {
    return status.WithContext("use --force to overwrite");
  }
  if (!status.ok()) return status;
  if (context.json()) {
    ordered_json object = Describe(selection.result);
    object["file"] = options.out.string();
    context.PrintJson(object);
  } else if (!context.quiet()) {
    context.PrintText(std::string(DTypeName(selection.result.dtype)) + " " +
                      HumanShape(selection.result.shape) + ", " +
                      HumanBytes(selection.result.logical_bytes) + ", written to " +
                      Printable(options.out.string()) + "\n");
  }
  return {};
}

Status Write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size()) return Status::Ok();
  return Status::IOError("cannot write to standard output");
}

Outcome WriteToStandardOutput(const Context& context, const CheckpointReader& reader,
                              const Selection& selection, const GetOptions& options) {
  const Result<std::string> format = FormatOf(options);
  if (!format.ok()) return format.status();
  const auto header = FileHeader(context, *format, selection.result);
  if (!header.ok()) return header.status();
  if (Status status = Write(*header); !status.ok()) return status;
  return Stream(context, reader, selection, [](std::span<const std::byte> bytes) {
    return Write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  });
}

// Refuses what cannot be meant, before anything is read.
Outcome CheckOptions(const Context& context, const GetOptions& options) {
  if (options.out.empty() && !options.format.empty()) {
    return Outcome::Usage("--format is for -o");
  }
  if (!options.out.empty() && !options.num_values.empty()) {
    return Outcome::Usage("--values is for a print, and -o writes all values");
  }
  if (!ToStandardOutput(options)) return {};
  if (context.json()) return Outcome::Usage("standard output takes --json or -o -, not both");
  if (::isatty(STDOUT_FILENO) == 1 && !options.force) {
    return Outcome::Usage("standard output is a terminal: send it elsewhere, or use --force");
  }
  return {};
}

Outcome RunGet(const Context& context, const Store& store, const GetOptions& options) {
  if (Outcome outcome = CheckOptions(context, options); !outcome.ok()) return outcome;
  const auto id = store.Resolve(options.step);
  if (!id.ok()) return id.status();
  const auto reader = ShardedReader::Open(store, id->run, id->step);
  if (!reader.ok()) return reader.status();
  const Result<Selection> selection = SelectTensor(**reader, options);
  if (!selection.ok()) return selection.status();
  if (options.out.empty()) return Summarize(context, **reader, *selection, options);
  return ToStandardOutput(options) ? WriteToStandardOutput(context, **reader, *selection, options)
                                   : Save(context, **reader, *selection, options);
}

constexpr char kGetNotes[] =
    R"(Without -o it prints the smallest, the largest, the mean and the first values.
With --values it prints N values, a line for each row of the last axis. With
--slice these are values of the slice.

-o - writes to standard output: raw bytes, or what --format says. What was read
before an error has then been written, so the exit code says whether the tensor
is whole. A terminal gets it only with --force.

A type that NumPy lacks (bf16, fp8, and those below a byte) goes into .npy as
its raw bits in unsigned integers, with a remark on standard error.

JSON: name dtype shape logical_bytes, and min max mean nan values or, with -o,
file; not with -o -)";

}  // namespace

void AddGet(CLI::App& app, Context& context) {
  auto options = std::make_shared<GetOptions>();
  CLI::App* verb = app.add_subcommand("get", "Read one tensor or a slice of it");
  verb->add_option("STEP", options->step, kStepHelp)->required();
  verb->add_option("NAME", options->name, "The tensor")->required();
  verb->add_option("--slice", options->slice, "As in NumPy, without steps: \"0:10,:,-3:\"")
      ->type_name("SLICE");
  verb->add_option("--shard", options->shard, "Which shard, when the tensor has several")
      ->type_name("N");
  verb->add_option("-n,--values", options->num_values, "Print so many values, at most a million")
      ->type_name("N");
  verb->add_option("-o,--output", options->out,
                   "x.npy, x.safetensors or x.bin (raw bytes); - is standard output")
      ->type_name("OUT");
  verb->add_option("--format", options->format,
                   "The format to write, if the ending of OUT does not say it")
      ->check(CLI::IsMember({"npy", "safetensors", "bin"}));
  verb->add_flag("--force", options->force,
                 "Overwrite an existing file; with -o -, write to a terminal");
  verb->footer(kGetNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunGet(context, store, *options); });
}

}  // namespace varve::internal::cli
