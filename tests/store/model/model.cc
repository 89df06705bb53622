// SPDX-License-Identifier: Apache-2.0
#include "tests/store/model/model.h"

#include <algorithm>
#include <iterator>

#include "tests/store/model/content.h"

namespace varve::internal::testing {
namespace {

std::string NameOf(const CheckpointId& id) { return id.run + "@" + std::to_string(id.step); }

std::string NameOf(const std::optional<CheckpointId>& id) {
  return id.has_value() ? NameOf(*id) : "";
}

std::string LineOf(const std::string& size, const std::string& parent,
                   const std::map<std::string, double>& metrics,
                   const std::vector<std::string>& tags) {
  std::string line = size + ", parent " + parent + ", metrics";
  for (const auto& [name, value] : metrics) line += " " + name + "=" + std::to_string(value);
  line += ", tags";
  for (const std::string& tag : tags) line += " " + tag;
  return line;
}

std::string LineOf(const std::string& forked_from, uint64_t num_steps) {
  return "forked from " + forked_from + ", steps " + std::to_string(num_steps);
}

std::string LineOf(uint64_t runs, uint64_t steps, uint64_t bytes) {
  return std::to_string(runs) + " runs, " + std::to_string(steps) + " steps, " +
         std::to_string(bytes) + " bytes";
}

template <typename T, typename Show>
std::string Shown(const Result<T>& result, const Show& show) {
  return result.ok() ? show(*result) : ErrorText(result.status());
}

// True when an error says why this question has no answer.
bool IsCovered(const Answers& found, const std::string& question) {
  return std::any_of(found.begin(), found.end(), [&](const auto& answer) {
    return answer.second.starts_with(kError) && question.starts_with(answer.first);
  });
}

std::string Compare(const Answers& found, const Answers& expected, const std::string& question) {
  const auto answer = [&](const Answers& answers) {
    const auto it = answers.find(question);
    return it == answers.end() ? std::string("nothing") : "\"" + it->second + "\"";
  };
  const std::string is = answer(found), should_be = answer(expected);
  if (is == should_be) return "";
  return question + ": found " + is + ", expected " + should_be;
}

void AskCheckpoint(const Store& store, const CheckpointInfo& info, Answers* answers) {
  const std::string size = std::to_string(info.num_tensors) + " tensors, " +
                           std::to_string(info.logical_bytes) + " bytes";
  (*answers)[NameOf(info.id)] = LineOf(size, NameOf(info.parent), info.metrics, info.tags);
  for (const std::string& tag : info.tags) {
    (*answers)[info.id.run + "@" + tag] =
        Shown(store.FindTag(info.id.run, tag), [](uint64_t step) { return std::to_string(step); });
  }
}

}  // namespace

std::string ErrorText(const Status& status) { return kError + status.ToString(); }

Answers Ask(const Store& store) {
  Answers answers;
  const auto runs = store.ListRuns();
  if (!runs.ok()) return {{"", ErrorText(runs.status())}};
  for (const RunInfo& run : *runs) {
    answers["run " + run.name] = LineOf(NameOf(run.forked_from), run.num_steps);
    answers[run.name + "@latest"] = Shown(store.LatestStep(run.name), [](const auto& latest) {
      return latest.has_value() ? std::to_string(*latest) : "";
    });
    const auto infos = store.ListCheckpoints(run.name);
    if (!infos.ok()) answers[run.name + "@"] = ErrorText(infos.status());
    if (!infos.ok()) continue;
    for (const CheckpointInfo& info : *infos) AskCheckpoint(store, info, &answers);
  }
  answers["stats"] = Shown(store.Stats(), [](const StoreStats& stats) {
    if (!stats.warnings.empty()) return kError + stats.warnings[0];
    return LineOf(stats.num_runs, stats.num_steps, stats.logical_bytes);
  });
  return answers;
}

std::string FirstDifference(const Answers& found, const Answers& expected) {
  for (const Answers* answers : {&expected, &found}) {
    for (const auto& [question, ignored] : *answers) {
      std::string difference = Compare(found, expected, question);
      if (!difference.empty()) return difference;
    }
  }
  return "";
}

std::string FirstWrongAnswer(const Answers& found, const Answers& expected) {
  for (const Answers* answers : {&expected, &found}) {
    for (const auto& [question, ignored] : *answers) {
      if (IsCovered(found, question)) continue;
      std::string difference = Compare(found, expected, question);
      if (!difference.empty()) return difference;
    }
  }
  return "";
}

const Model::Checkpoint* Model::Find(const CheckpointId& id) const {
  const auto run = runs_.find(id.run);
  if (run == runs_.end()) return nullptr;
  const auto step = run->second.steps.find(id.step);
  return step == run->second.steps.end() ? nullptr : &step->second;
}

std::string Model::NameOf(const std::optional<Key>& key) const {
  if (!key.has_value()) return "";
  for (const auto& [name, run] : runs_) {
    if (run.number == key->first) return name + "@" + std::to_string(key->second);
  }
  return "";
}

void Model::AskStep(const CheckpointId& id, const Run& run, Answers* answers) const {
  const Checkpoint& checkpoint = run.steps.at(id.step);
  std::vector<std::string> tags;
  for (const auto& [tag, step] : run.tags) {
    if (step == id.step) tags.push_back(tag);
  }
  (*answers)[testing::NameOf(id)] = LineOf(SizeOfContent(checkpoint.content),
                                           NameOf(checkpoint.parent), checkpoint.metrics, tags);
}

Answers Model::Ask() const {
  Answers answers;
  uint64_t num_steps = 0, bytes = 0;
  for (const auto& [name, run] : runs_) {
    answers["run " + name] = LineOf(NameOf(run.forked_from), run.steps.size());
    answers[name + "@latest"] = run.steps.empty() ? "" : std::to_string(run.steps.rbegin()->first);
    for (const auto& [tag, step] : run.tags) answers[name + "@" + tag] = std::to_string(step);
    num_steps += run.steps.size();
    for (const auto& [step, checkpoint] : run.steps) {
      AskStep({name, step}, run, &answers);
      bytes += BytesOfContent(checkpoint.content);
    }
  }
  answers["stats"] = LineOf(runs_.size(), num_steps, bytes);
  return answers;
}

std::vector<CheckpointId> Model::StepsOf(const std::string& run) const {
  std::vector<CheckpointId> ids;
  const auto found = runs_.find(run);
  if (found == runs_.end()) return ids;
  for (const auto& [step, ignored] : found->second.steps) ids.push_back({run, step});
  return ids;
}

std::vector<CheckpointId> Model::All() const {
  std::vector<CheckpointId> all;
  for (const auto& [name, ignored] : runs_) {
    for (CheckpointId& id : StepsOf(name)) all.push_back(std::move(id));
  }
  return all;
}

std::vector<CheckpointId> Model::ForgottenBy(const std::string& run, uint64_t last,
                                             uint64_t every) const {
  const std::vector<CheckpointId> steps = StepsOf(run);
  std::vector<CheckpointId> forgotten;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool is_kept = i + last >= steps.size() || (every > 0 && steps[i].step % every == 0);
    if (!is_kept) forgotten.push_back(steps[i]);
  }
  return forgotten;
}

StatusCode Model::Save(const CheckpointId& id, const NewStep& step) {
  const auto found = runs_.find(id.run);
  const bool exists = Has(id);
  if (exists && step.on_existing == OnExisting::kError) return StatusCode::kAlreadyExists;
  if (step.parent.has_value() && !Has({id.run, *step.parent})) return StatusCode::kNotFound;
  if (found == runs_.end()) runs_[id.run].number = next_number_++;
  const uint32_t number = runs_[id.run].number;
  std::optional<Key> parent;
  if (step.parent.has_value()) {
    parent = {number, *step.parent};
  } else if (!runs_[id.run].steps.empty()) {
    parent = {number, runs_[id.run].steps.rbegin()->first};
  }
  if (exists && step.on_existing == OnExisting::kFork) {
    const std::string moved = Move(id.run, id.step);
    if (parent.has_value() && parent->second >= id.step) parent->first = runs_[moved].number;
  }
  Run& run = runs_[id.run];
  run.steps[id.step] = {step.content, parent, step.metrics};
  for (const std::string& tag : step.tags) run.tags[tag] = id.step;
  return StatusCode::kOk;
}

StatusCode Model::SetTag(const CheckpointId& id, const std::string& tag) {
  if (!Has(id)) return StatusCode::kNotFound;
  runs_[id.run].tags[tag] = id.step;
  return StatusCode::kOk;
}

StatusCode Model::RemoveTag(const std::string& run, const std::string& tag) {
  const auto found = runs_.find(run);
  if (found == runs_.end() || found->second.tags.erase(tag) == 0) return StatusCode::kNotFound;
  return StatusCode::kOk;
}

StatusCode Model::SetMetrics(const CheckpointId& id, const std::map<std::string, double>& metrics) {
  if (!Has(id)) return StatusCode::kNotFound;
  for (const auto& [name, value] : metrics) runs_[id.run].steps[id.step].metrics[name] = value;
  return StatusCode::kOk;
}

StatusCode Model::Fork(const std::string& run, const std::string& new_run,
                       std::optional<uint64_t> at) {
  const std::vector<CheckpointId> steps = StepsOf(run);
  if (!at.has_value() && steps.empty()) return StatusCode::kNotFound;
  const CheckpointId from{run, at.value_or(steps.empty() ? 0 : steps.back().step)};
  if (!Has(from)) return StatusCode::kNotFound;
  if (runs_.contains(new_run)) return StatusCode::kAlreadyExists;
  const Key origin{runs_[run].number, from.step};
  Checkpoint copy = *Find(from);
  copy.parent = origin;
  runs_[new_run] = {next_number_++, origin, {{from.step, copy}}, {}};
  return StatusCode::kOk;
}

StatusCode Model::Rewind(const std::string& run, uint64_t to) {
  if (!Has({run, to})) return StatusCode::kNotFound;
  if (StepsOf(run).back().step > to) Move(run, to + 1);
  return StatusCode::kOk;
}

std::string Model::Move(const std::string& run, uint64_t first) {
  std::string name;
  for (int k = 1; name.empty() || runs_.contains(name); ++k) name = run + "~" + std::to_string(k);
  Run& from = runs_[run];
  Run& to = runs_[name];
  to.number = next_number_++;
  const auto begin = from.steps.lower_bound(first);
  const Key origin{from.number, begin == from.steps.begin() ? 0 : std::prev(begin)->first};
  to.steps.insert(begin, from.steps.end());
  from.steps.erase(begin, from.steps.end());
  for (const auto& [tag, step] : from.tags) {
    if (step >= first) to.tags[tag] = step;
  }
  std::erase_if(from.tags, [&](const auto& tag) { return tag.second >= first; });
  const auto rename = [&](std::optional<Key>* key) {
    if (key->has_value() && (*key)->first == from.number && (*key)->second >= first) {
      (*key)->first = to.number;
    }
  };
  for (auto& [other, each] : runs_) {
    rename(&each.forked_from);
    for (auto& [step, checkpoint] : each.steps) rename(&checkpoint.parent);
  }
  to.forked_from = origin;
  return name;
}

StatusCode Model::Drop(std::span<const CheckpointId> ids) {
  for (const CheckpointId& id : ids) {
    if (!Has(id)) return StatusCode::kNotFound;
  }
  for (const CheckpointId& id : ids) {
    const auto run = runs_.find(id.run);
    if (run == runs_.end()) continue;  // the same id was there before
    run->second.steps.erase(id.step);
    std::erase_if(run->second.tags, [&](const auto& tag) { return tag.second == id.step; });
    if (run->second.steps.empty() && run->second.forked_from.has_value()) runs_.erase(run);
  }
  return StatusCode::kOk;
}

StatusCode Model::CopyTo(Model* to, std::span<const CheckpointId> ids,
                         OnExisting on_existing) const {
  for (const CheckpointId& id : ids) {
    const Checkpoint* const from = Find(id);
    if (from == nullptr) return StatusCode::kNotFound;
    NewStep step{on_existing, {}, from->content, from->metrics, {}};
    for (const CheckpointId& there : to->StepsOf(id.run)) {
      if (there.step < id.step) step.parent = there.step;
    }
    for (const auto& [tag, tagged] : runs_.at(id.run).tags) {
      if (tagged == id.step) step.tags.push_back(tag);
    }
    const StatusCode code = to->Save(id, step);
    if (code != StatusCode::kOk) return code;
  }
  return StatusCode::kOk;
}

}  // namespace varve::internal::testing
