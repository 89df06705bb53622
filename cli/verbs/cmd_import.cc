// SPDX-License-Identifier: Apache-2.0
//
// varve import: saves a checkpoint from files of other formats, chunk by chunk. Files of any size
// take little memory. A file that changes during the import is an error.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/glob.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/foreign/import_source.h"
#include "cli/foreign/put_source.h"
#include "cli/json.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "store/save/save_session.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using formats::FileTensor;

struct ImportOptions {
  std::vector<std::filesystem::path> files;
  std::string step;
  std::string run = "main";
  std::string parent;
  std::vector<std::string> tags;
  std::vector<std::string> metrics;
  std::string format = kImportFormats[0];
  std::string on_existing = "error";
  std::vector<std::string> derive;
  bool init = false;
};

struct Metric {
  std::string name;
  double value = 0;
};

// The values of the text options, after they have been checked.
struct ImportPlan {
  std::optional<uint64_t> step;
  std::optional<uint64_t> parent;
  std::vector<Metric> metrics;
  std::vector<RenameRule> derive;
  OnExisting on_existing = OnExisting::kError;
};

Result<ImportPlan> Plan(const ImportOptions& options) {
  ImportPlan plan;
  if (!options.step.empty()) {
    VARVE_ASSIGN_OR_RETURN(plan.step, ParseNumber("--step", options.step));
  } else if (!MaySayStep(options.format)) {
    return Status::InvalidArgument("--step is missing: " + options.format +
                                   " files do not say their step");
  }
  if (!options.parent.empty()) {
    VARVE_ASSIGN_OR_RETURN(plan.parent, ParseNumber("--parent", options.parent));
  }
  for (const std::string& text : options.metrics) {
    VARVE_ASSIGN_OR_RETURN(auto metric, ParseMetric(text));
    plan.metrics.push_back({std::move(metric.first), metric.second});
  }
  for (const std::string& text : options.derive) {
    VARVE_ASSIGN_OR_RETURN(RenameRule rule, RenameRule::Parse(text));
    plan.derive.push_back(std::move(rule));
  }
  VARVE_ASSIGN_OR_RETURN(plan.on_existing, ParseOnExisting(options.on_existing));
  for (const std::string& tag : options.tags) VARVE_RETURN_IF_ERROR(ValidateTag(tag));
  VARVE_RETURN_IF_ERROR(ValidateRun(options.run));
  return plan;
}

// Finds, for a 16-bit tensor, the fp32 tensor that a --derive rule names as its source.
class SourceFinder {
 public:
  SourceFinder(const std::vector<FileTensor>& tensors, const std::vector<RenameRule>& rules)
      : rules_(rules) {
    for (const FileTensor& tensor : tensors) by_name_.emplace(tensor.name, &tensor);
  }

  // Returns the source's name, which lives as long as the tensors, or an empty name when there is
  // none.
  std::string_view Find(const FileTensor& tensor) const {
    if (tensor.dtype != DType::kBF16 && tensor.dtype != DType::kF16) return {};
    for (const RenameRule& rule : rules_) {
      const std::optional<std::string> name = rule.Apply(tensor.name);
      if (!name) continue;
      const auto found = by_name_.find(*name);
      if (found == by_name_.end()) continue;
      const FileTensor& source = *found->second;
      if (source.dtype == DType::kF32 && source.shape == tensor.shape) return source.name;
    }
    return {};
  }

 private:
  const std::vector<RenameRule>& rules_;
  std::unordered_map<std::string_view, const FileTensor*> by_name_;
};

// Sets derived_from of the tensors that a --derive rule names.
void LinkDerived(const Context& context, const ImportPlan& plan, ImportSource* source) {
  const SourceFinder sources(source->tensors, plan.derive);
  uint64_t num_derived = 0;
  for (FileTensor& tensor : source->tensors) {
    tensor.derived_from = sources.Find(tensor);
    if (!tensor.derived_from.empty()) ++num_derived;
  }
  if (!plan.derive.empty() && num_derived == 0) {
    context.Note("--derive matched no 16-bit tensor with an fp32 tensor of the same shape");
  }
}

Status PutAnnotations(const ImportOptions& options, const ImportPlan& plan,
                      CheckpointWriter* writer) {
  for (const Metric& metric : plan.metrics) {
    VARVE_RETURN_IF_ERROR(writer->SetMetric(metric.name, metric.value));
  }
  for (const std::string& tag : options.tags) VARVE_RETURN_IF_ERROR(writer->AddTag(tag));
  return Status::Ok();
}

Result<SaveReport> Save(const Context& context, const std::shared_ptr<ImportSource>& source,
                        const ImportOptions& options, const ImportPlan& plan, Store* store) {
  SaveOptions save;
  save.run = options.run;
  save.parent = plan.parent;
  save.on_existing = plan.on_existing;
  // Files may come from someone who knows how to build two chunks of one digest.
  save.verify_sharing = true;
  ProgressBar progress("import", context.quiet());
  save.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  VARVE_ASSIGN_OR_RETURN(const auto session, SaveSession::Begin(store, *plan.step, save));
  LinkDerived(context, plan, source.get());
  VARVE_RETURN_IF_ERROR(PutSource(source, session.get()));
  VARVE_RETURN_IF_ERROR(PutAnnotations(options, plan, session.get()));
  return session->Commit();
}

// Returns the existing checkpoint of this step if it is to be replaced.
std::optional<CheckpointInfo> FindReplaced(const Context& context, const Store& store,
                                           const std::string& run, const ImportPlan& plan) {
  if (plan.on_existing != OnExisting::kReplace) return std::nullopt;
  const auto there = store.OpenCheckpoint(run, *plan.step);
  if (there.ok()) return (*there)->info();
  if (there.status().code() != StatusCode::kNotFound) {  // it is replaced all the same
    context.Note(
        "the step that is replaced cannot be read, so nobody knows which tags and metrics "
        "it had: " +
        there.status().message());
  }
  return std::nullopt;
}

// Tags belong to the number of a step, so they stay. Metrics belong to what was saved, so they go.
// The user is told both.
void NoteReplaced(const Context& context, const CheckpointInfo& replaced) {
  const std::string step = "step " + HumanId(replaced.id) + " was replaced";
  if (!replaced.tags.empty()) {
    context.Note(step + ": its " + (replaced.tags.size() == 1 ? "tag " : "tags ") +
                 Join(replaced.tags, ", ") + " now " +
                 (replaced.tags.size() == 1 ? "names" : "name") + " the new bytes");
  }
  if (!replaced.metrics.empty()) {
    context.Note(step + ": the old metrics are gone: " + HumanMetrics(replaced.metrics));
  }
}

Outcome RunImport(const Context& context, const ImportOptions& options) {
  std::string path;
  if (Outcome outcome = context.StorePath(&path); !outcome.ok()) return outcome;
  Result<ImportPlan> plan = Plan(options);
  if (!plan.ok()) return plan.status();
  // The files are read first, because a malformed one must not leave an empty store behind.
  Result<ImportSource> read = ReadFiles(options.format, options.files, plan->step);
  if (!read.ok()) return Outcome::Failed(read.status());
  const auto source = std::make_shared<ImportSource>(*std::move(read));
  if (!plan->step) plan->step = source->step;
  if (!plan->step) return Outcome::Usage("--step is missing, and the files do not say it either");
  source->SetStep(*plan->step);
  const auto store =
      context.OpenForWriting(path, options.init ? Context::Absent::kMake : Context::Absent::kError);
  if (!store.ok()) return OpenOutcome(store.status());
  for (const std::string& note : source->notes) context.Note(note);
  const std::optional<CheckpointInfo> replaced = FindReplaced(context, **store, options.run, *plan);
  const Result<SaveReport> report = Save(context, source, options, *plan, store->get());
  if (!report.ok()) return report.status();
  if (replaced) NoteReplaced(context, *replaced);
  context.Warn(report->warnings);
  if (context.json()) {
    nlohmann::ordered_json object = ToJson(*report);
    if (replaced) {
      object["replaced"] = {{"tags", replaced->tags}, {"metrics", ToJson(replaced->metrics)}};
    }
    context.PrintJson(object);
  } else if (!context.quiet()) {
    context.PrintText(SaveText(*report) + "\n");
  }
  return {};
}

constexpr char kImportNotes[] =
    R"(Files must not change meanwhile: one that does fails the import. The
__metadata__ of a safetensors file is kept in the trainer state's extra, under
keys that begin with "safetensors.", and export writes it back. Tensors that are
named as optimizer state (exp_avg.X, exp_avg_sq.X, master.X, optimizer.X, ...)
are recorded as such.

infinitrain: FILE is a folder checkpoint_step_NNNNNN, or files of it. llmc: FILE
is a model file, or a state file that belongs to it. What is no tensor is kept,
too, so that export --format gives the same bytes. These two may say the step;
--step wins, also in what is kept. They and safetensors have no checksum: a byte
that changed in a tensor before the import cannot be told.
docs/foreign_formats.md says what is kept where.

torch: FILE is a file of torch.save (.pt, .pth, .bin), an *.index.json of such
files, or a folder of them. Nothing in it is executed: what is neither a tensor,
a container nor a plain value is refused by its name. varve.torch.load gives the
state dict back. dcp: FILE is a folder of torch.distributed.checkpoint, whose
chunks become whole tensors. Both may say the step, as global_step or step.

npz: FILE is a .npz or .npy file of NumPy's. An array gets the name that it has
in the .npz, or that of its .npy file.

--derive 'model.*=master.*' says that each 16-bit tensor model.X is the rounded
copy of the FP32 tensor master.X: chunks of which that is true are not stored.

A step that is replaced keeps its tags, which name the new bytes then, and loses
its metrics; import says which.

The root of a group takes no import: its ranks save together.

JSON: run step tensors logical_bytes new_bytes stored_bytes seconds by_codec
by_coder; replaced[tags metrics] of a step that was replaced; on damage also
warnings)";

}  // namespace

void AddImport(CLI::App& app, Context& context) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* verb = app.add_subcommand("import", "Save a checkpoint from files");
  verb->add_option("FILE", options->files,
                   "Files of the format, a folder of them, or their *.index.json")
      ->required();
  verb->add_option("--step", options->step, "The step to save; needed unless the files say it")
      ->type_name("N");
  verb->add_option("--run", options->run, "The run to save it in, made if new")
      ->type_name("RUN")
      ->capture_default_str();
  verb->add_option("--parent", options->parent,
                   "The step of the run to take deltas against; if not given, its newest")
      ->type_name("N");
  verb->add_option("--tag", options->tags, "A tag for the step; may be repeated")
      ->type_name("TAG")
      ->allow_extra_args(false);
  verb->add_option("--metric", options->metrics, "A metric of the step; may be repeated")
      ->type_name("METRIC=VALUE")
      ->allow_extra_args(false);
  verb->add_option("--format", options->format, "The format of the files")
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(kImportFormats), std::end(kImportFormats))))
      ->capture_default_str();
  verb->add_option("--on-existing", options->on_existing, kOnExistingHelp)
      ->check(CLI::IsMember({"error", "replace", "fork"}))
      ->capture_default_str();
  verb->add_option("--derive", options->derive,
                   "16-bit tensors on the left are rounded copies of FP32 ones on the right")
      ->type_name("GLOB=GLOB")
      ->allow_extra_args(false);
  verb->add_flag("--init", options->init, "Make the store if there is none");
  verb->footer(kImportNotes);
  context.OnAnything(verb, [&context, options] { return RunImport(context, *options); });
}

}  // namespace varve::internal::cli
