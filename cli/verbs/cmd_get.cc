// SPDX-License-Identifier: Apache-2.0
//
// varve get: one tensor, or a slice of it, as a file or for people to look at.
#include <CLI/CLI.hpp>
#include <cstdint>
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
#include "cli/tensor_summary.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using formats::OutputFile;
using nlohmann::ordered_json;

struct GetOptions {
  std::string step;
  std::string name;
  std::string shard;  // empty = the only one
  std::string slice;
  std::filesystem::path out;
  bool force = false;
};

// What to read: a box of a tensor, and the tensor that comes out.
struct Selection {
  TensorInfo tensor;
  std::vector<Range> ranges;
  TensorInfo result;
};

Result<TensorInfo> FindTensor(const CheckpointReader& reader, const GetOptions& options) {
  if (!options.shard.empty()) {
    VARVE_ASSIGN_OR_RETURN(const uint64_t shard, ParseNumber("--shard", options.shard, UINT32_MAX));
    return reader.Find(options.name, static_cast<uint32_t>(shard));
  }
  VARVE_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, reader.List());
  std::erase_if(tensors, [&](const TensorInfo& tensor) { return tensor.name != options.name; });
  if (tensors.empty()) return reader.Find(options.name);
  if (tensors.size() == 1) return tensors[0];
  std::vector<std::string> numbers;
  for (const TensorInfo& tensor : tensors) numbers.push_back(std::to_string(tensor.shard));
  return Status::InvalidArgument("tensor \"" + options.name + "\" is saved in the shards " +
                                 Join(numbers, ", ") + "; choose one with --shard");
}

Result<Selection> Select(const CheckpointReader& reader, const GetOptions& options) {
  Selection selection;
  VARVE_ASSIGN_OR_RETURN(selection.tensor, FindTensor(reader, options));
  VARVE_ASSIGN_OR_RETURN(const Slice slice, ParseSlice(options.slice, selection.tensor.shape));
  selection.ranges = slice.ranges;
  selection.result = {
      {.name = selection.tensor.name, .dtype = selection.tensor.dtype, .shape = slice.shape}};
  VARVE_ASSIGN_OR_RETURN(selection.result.logical_bytes,
                         NumBytes(selection.tensor.dtype, slice.shape));
  return selection;
}

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

ordered_json Describe(const TensorInfo& tensor) {
  return {{"name", tensor.name},
          {"dtype", DTypeName(tensor.dtype)},
          {"shape", tensor.shape},
          {"logical_bytes", tensor.logical_bytes}};
}

Outcome Summarize(const Context& context, const CheckpointReader& reader,
                  const Selection& selection) {
  TensorSummary summary(selection.tensor.dtype);
  const Status status = Stream(context, reader, selection, [&](std::span<const std::byte> bytes) {
    summary.Add(bytes);
    return Status::Ok();
  });
  if (!status.ok()) return status;
  const TensorInfo& result = selection.result;
  if (context.json()) {
    ordered_json object = Describe(result);
    object.update(summary.ToJson());
    context.PrintJson(object);
    return {};
  }
  context.PrintText("name    " + Printable(result.name) + "\ndtype   " +
                    std::string(DTypeName(result.dtype)) + "\nshape   " + HumanShape(result.shape) +
                    "\nbytes   " + HumanBytes(result.logical_bytes) + "\n" + summary.ToText());
  return {};
}

// What precedes the tensor's bytes in a file with this ending.
Result<std::string> FileHeader(const Context& context, const std::string& ending,
                               const TensorInfo& tensor) {
  if (ending == ".bin") return std::string();
  if (ending == ".safetensors") return formats::BuildSafetensorsHeader({{tensor}}, {});
  if (ending != ".npy") {
    return Status::InvalidArgument("the output must end in .npy, .safetensors or .bin, not in \"" +
                                   ending + "\"");
  }
  const formats::NpyType type = formats::NpyTypeOf(tensor.dtype, tensor.shape);
  if (!type.exact) {
    context.Note("NumPy has no " + std::string(DTypeName(tensor.dtype)) +
                 ": its raw bits are written as unsigned integers (" + type.descr + ")");
  }
  return formats::BuildNpyHeader(type);
}

Status WriteFile(const Context& context, const CheckpointReader& reader, const Selection& selection,
                 const GetOptions& options) {
  const std::string ending = options.out.extension().string();
  VARVE_ASSIGN_OR_RETURN(const std::string header, FileHeader(context, ending, selection.result));
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

Outcome RunGet(const Context& context, const Store& store, const GetOptions& options) {
  const auto id = store.Resolve(options.step);
  if (!id.ok()) return id.status();
  const auto reader = store.OpenCheckpoint(id->run, id->step);
  if (!reader.ok()) return reader.status();
  const Result<Selection> selection = Select(**reader, options);
  if (!selection.ok()) return selection.status();
  return options.out.empty() ? Summarize(context, **reader, *selection)
                             : Save(context, **reader, *selection, options);
}

constexpr char kNotes[] =
    R"(Without -o it prints the smallest, the largest, the mean and the first values. A
type that NumPy lacks (bf16, fp8, and those below a byte) goes into .npy as its
raw bits in unsigned integers, with a remark on standard error.

JSON: name dtype shape logical_bytes, and min max mean nan values or, with -o,
file)";

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
  verb->add_option("-o,--output", options->out, "x.npy, x.safetensors or x.bin (raw bytes)")
      ->type_name("OUT");
  verb->add_flag("--force", options->force, "Overwrite an existing file");
  verb->footer(kNotes);
  context.OnReading(
      verb, [&context, options](const Store& store) { return RunGet(context, store, *options); });
}

}  // namespace varve::internal::cli
