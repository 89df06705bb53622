// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/group_content.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "tests/support/step_content.h"

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kNumTensors = 5;  // of each plan

ContentPlan MakePlan(uint64_t seed) {
  return {.seed = seed,
          .num_tensors = kNumTensors,
          .max_tensor_bytes = uint64_t{64} << 10,
          .period = 3};
}
ContentPlan PlanOf(uint32_t rank) { return MakePlan(50 + rank); }
ContentPlan PlanOfAll() { return MakePlan(49); }

std::string NameOf(uint32_t rank, const std::string& tensor) {
  return "r" + std::to_string(rank) + "/" + tensor;
}

// Tensors that all ranks have, as bytes. Each rank has the first one whole, and an equal part of
// each other one.
ShardLayout LayoutOf(size_t tensor, int64_t size, uint32_t rank, uint32_t num_ranks) {
  ShardLayout layout = ShardLayout::Whole({size});
  if (tensor == 0) return layout;
  const int64_t begin = size * rank / num_ranks, end = size * (rank + 1) / num_ranks;
  layout.axes[0] = {{begin, end - begin}};
  return layout;
}

Status CompareTensors(const CheckpointReader& reader, const ContentPlan& plan, uint64_t step,
                      const std::function<std::string(const std::string&)>& name_of) {
  for (const MadeTensor& made : MakeContent(plan, step)) {
    const std::string name = name_of(made.name);
    std::vector<std::byte> found(made.bytes.size());
    VARVE_RETURN_IF_ERROR(reader.Read(name, found));
    if (found != made.bytes) {
      return Status::Corruption("tensor " + name + " is not that of step " + std::to_string(step));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<RankSave> BeginSave(GroupStore* store, uint32_t num_ranks, uint64_t step) {
  const uint32_t rank = store->author().rank;
  RankSave save{MakeContent(PlanOf(rank), step), MakeContent(PlanOfAll(), step), nullptr};
  VARVE_ASSIGN_OR_RETURN(save.writer, store->Begin(step, {}));
  CheckpointWriter* const writer = save.writer.get();
  for (const MadeTensor& made : save.own) {
    const std::string name = NameOf(rank, made.name);
    VARVE_RETURN_IF_ERROR(writer->Put(
        {.name = name, .dtype = made.dtype, .shape = made.shape, .data = made.bytes.data()}));
  }
  for (size_t i = 0; i < save.all.size(); ++i) {
    const std::vector<std::byte>& bytes = save.all[i].bytes;
    const ShardLayout layout = LayoutOf(i, std::ssize(bytes), rank, num_ranks);
    VARVE_RETURN_IF_ERROR(writer->Put({.name = save.all[i].name,
                                       .dtype = DType::kU8,
                                       .shape = layout.LocalShape(),
                                       .data = bytes.data() + layout.axes[0][0].begin,
                                       .layout = &layout}));
  }
  TrainerProgress state;
  state.global_step = static_cast<int64_t>(step);
  state.consumed_samples = ::getpid();  // which process saved it
  VARVE_RETURN_IF_ERROR(writer->SetTrainerProgress(state));
  return save;
}

Status VerifyStep(const CheckpointReader& reader) {
  VARVE_ASSIGN_OR_RETURN(const uint64_t content, ReadContentNumber(reader));
  if (content != reader.info().id.step) {
    return Status::Corruption("holds step " + std::to_string(content));
  }
  VARVE_ASSIGN_OR_RETURN(const std::vector<TensorInfo> list, reader.List());
  const auto num_ranks = static_cast<uint32_t>(list.size() / kNumTensors - 1);
  for (const TensorInfo& info : list) {
    const uint32_t num_shards = info.name.starts_with("r") ? 1 : num_ranks;
    if (info.num_shards == num_shards && list.size() % kNumTensors == 0) continue;
    return Status::Corruption("holds " + std::to_string(list.size()) + " tensors, of " + info.name +
                              " " + std::to_string(info.num_shards) + " shards");
  }
  VARVE_RETURN_IF_ERROR(
      CompareTensors(reader, PlanOfAll(), content, [](const std::string& name) { return name; }));
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    VARVE_RETURN_IF_ERROR(
        CompareTensors(reader, PlanOf(rank), content,
                       [&](const std::string& name) { return NameOf(rank, name); }));
  }
  return Status::Ok();
}

Result<std::vector<uint64_t>> ListSteps(const Store& store) {
  std::vector<uint64_t> steps;
  const auto infos = store.ListCheckpoints("main");
  if (infos.status().code() == StatusCode::kNotFound) return steps;
  if (!infos.ok()) return infos.status();
  for (const CheckpointInfo& info : *infos) steps.push_back(info.id.step);
  return steps;
}

Result<std::vector<std::string>> FindLeaks(const fs::path& root) {
  std::vector<std::string> leaks;
  VARVE_ASSIGN_OR_RETURN(const auto group, GroupStore::OpenPath(root, {}, /*for_writing=*/true));
  VARVE_RETURN_IF_ERROR(group->Reclaim({.all = true}).status());
  const GroupState state = group->log()->With([](const GroupState& s) { return s; });
  std::map<MemberId, std::set<AttemptId>> expected;
  std::set<std::string> files{"GROUP"};
  for (const auto& [number, attempt] : state.attempts) {
    if (!attempt.committed || attempt.names == 0)
      leaks.push_back("open attempt " + std::to_string(number));
    files.insert("catalogues/" + std::to_string(number));
    for (const MemberId member : attempt.Members()) expected[member].insert(number);
  }
  for (const auto& [id, member] : state.members) {
    files.insert("log/slots/" + MemberName(id));
    VARVE_ASSIGN_OR_RETURN(const auto store, group->MemberForReading(id));
    VARVE_ASSIGN_OR_RETURN(const auto held, HeldAttempts(*store));
    VARVE_ASSIGN_OR_RETURN(const StoreStats stats, store->Stats());
    if (held != expected[id]) leaks.push_back("member " + MemberName(id) + " holds other attempts");
    if (stats.pending_bytes != 0) leaks.push_back(MemberName(id) + " has pending bytes");
    if (!fs::is_empty(MemberFolder(root, id) / "incoming"))
      leaks.push_back(MemberName(id) + "/incoming");
  }
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string path = fs::relative(entry.path(), root);
    const std::string top = path.substr(0, path.find('/'));
    if (entry.is_directory() || top == "members") continue;
    const bool is_slot = path.starts_with("log/slots/");
    const bool is_record = top == "log" && !is_slot && path.find("/tmp-") == std::string::npos;
    if (is_record || top.starts_with("RESERVE.")) continue;
    if (!files.contains(path)) leaks.push_back(path);
  }
  for (const auto& entry : fs::directory_iterator(root / "members")) {
    const std::string name = entry.path().filename();
    const bool known =
        std::any_of(state.members.begin(), state.members.end(),
                    [&](const auto& member) { return MemberName(member.first) == name; });
    if (!known) leaks.push_back("members/" + name);
  }
  return leaks;
}

Result<std::vector<std::string>> JudgeGroup(const fs::path& root) {
  std::vector<std::string> lines;
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> leaks, FindLeaks(root));
  for (const std::string& leak : leaks) lines.push_back("leak " + leak);
  VARVE_ASSIGN_OR_RETURN(const auto store, Store::OpenForReading(root));
  VARVE_ASSIGN_OR_RETURN(const CheckReport check, store->Check({.read_data = true}));
  for (const std::string& error : check.errors) lines.push_back("error " + error);
  VARVE_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, ListSteps(*store));
  for (const uint64_t step : steps) {
    const auto reader = store->OpenCheckpoint("main", step);
    const Status status = reader.ok() ? VerifyStep(**reader) : reader.status();
    lines.push_back("step " + std::to_string(step) + " " + status.ToString());
  }
  return lines;
}

}  // namespace varve::internal::testing
