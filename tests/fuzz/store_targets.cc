// SPDX-License-Identifier: Apache-2.0
//
// Records and keys of a store and of a group, requests, and what lies in an object store.
#include <string>

#include "base/util.h"
#include "store/db/frame_block.h"
#include "store/db/manifest_log.h"
#include "store/db/manifest_note.h"
#include "store/db/manifest_tables.h"
#include "store/db/reference_counts.h"
#include "store/format/keys.h"
#include "store/format/record.h"
#include "store/format/trainer_progress.h"
#include "store/group/catalogue.h"
#include "store/ops/database_copy.h"
#include "store/ops/inbox.h"
#include "store/remote/remote_state.h"
#include "tests/fuzz/targets.h"

// GCC 12 sees the strings of a variant's other members being destroyed (its bug 105562).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace varve::internal::fuzz {
namespace {

// What decodes must be the same when it is encoded and decoded again.
template <auto kDecode, auto kEncode>
void RoundTrip(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const auto decoded = kDecode(exact.text());
  if (!decoded.ok()) return;
  const std::string once = kEncode(*decoded);
  const auto again = kDecode(once);
  Require(again.ok());
  Require(kEncode(*again) == once);
}

Result<TensorRecord> DecodeTensor(std::string_view value) { return DecodeTensorRecord(value); }
std::string EncodeTensor(const TensorRecord& record) { return EncodeTensorRecord(record); }
std::string EncodeItem(const ItemRecord& record) {
  return EncodeItemRecord(record.digest, AsBytes(record.value));
}
std::string EncodeStep(const StepRecord& record) { return EncodeStepRecord(record); }

constexpr uint32_t kNumRanks = 4;
Result<Catalogue> DecodeRanks(std::string_view bytes) { return DecodeCatalogue(bytes, kNumRanks); }
std::string EncodeRanks(const Catalogue& catalogue) { return EncodeCatalogue(catalogue); }

Result<RemoteState> DecodeRemote(std::string_view text) {
  return DecodeRemoteState(text, "the state");
}
Result<SnapshotBody> DecodeBody(std::string_view text) {
  return DecodeSnapshotBody(text, "the snapshot");
}

// Every key is at most a few hundred bytes, and any bytes may stand where one should.
void ReadKeys(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const std::string_view key = exact.text();
  if (const auto step = keys::ParseStep(key)) Require(keys::Step(*step) == key);
  if (const auto list = keys::ParseList(key)) Require(keys::List(*list) == key);
  if (const auto chunk = keys::ParseChunk(key)) Require(keys::Chunk(*chunk) == key);
  if (const auto run = keys::ParseRun(key)) Require(keys::Run(*run) == key);
  if (const auto tensor = keys::ParseTensor(key)) {
    Require(keys::Tensor(tensor->step, tensor->name, tensor->shard) == key);
  }
  if (const auto save = keys::ParseSave(key)) {
    Require((save->block.has_value() ? keys::SaveBlock(save->save_id, *save->block)
                                     : keys::Save(save->save_id)) == key);
  }
  if (const auto counts = keys::ParseCounts(key)) {
    Require(keys::Counts(counts->save_id, counts->kind, counts->block) == key);
  }
  if (const auto number = DecodeNumber(key)) Require(EncodeNumber(*number) == key);
  if (const auto address = DecodeAddress(key)) Require(EncodeAddress(*address) == key);
  (void)keys::ParseItem(key);
  (void)keys::ParseTag(key);
  const std::string end = keys::PrefixEnd(key);
  Require(end.empty() || end > key);
}

void ReadManifestLog(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const size_t compared = EndOfLogRecords(exact.text(), LogChecksums::kCompare);
  const size_t ignored = EndOfLogRecords(exact.text(), LogChecksums::kIgnore);
  Require(compared <= ignored && ignored <= input.size());
  std::string log(exact.text().substr(0, compared));
  AppendLogRecord("record", &log);
  Require(EndOfLogRecords(log, LogChecksums::kCompare) == log.size());
}

// The input is one record, or what two of a group hold.
void ReadManifestRecord(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  for (const bool is_split : {false, true}) {
    const size_t middle = is_split ? input.size() / 2 : input.size();
    std::string log;
    AppendLogRecord(exact.text().substr(0, middle), &log);
    if (is_split) AppendLogRecord(exact.text().substr(middle), &log);
    const ExactBytes exact_log(AsBytes(log));
    const auto found = DecodeManifest(exact_log.text());
    if (found.has_value()) Require(found->FileNames().size() == found->tables.size());
  }
}

void ReadBlock(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  (void)HasSoundEntries(exact.bytes());
}

void ReadMarker(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const auto marker = CopyMarker::Parse(exact.text(), "BACKUP");
  if (!marker.ok()) return;
  Require(CopyMarker::Parse(marker->ToText(), "BACKUP").ok());
}

void ReadNames(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  const std::string_view name = exact.text();
  if (const auto number = ParseStateName(name)) Require(StateName(*number) == name);
  if (const auto number = ParseNoteName(name)) Require(NoteName(*number) == name);
  if (const auto blob = ParseBlobName(name)) {
    Require(BlobName(blob->attempt, blob->content) == name);
  }
  (void)IsManifestName(name);
}

TensorRecord SomeShard() {
  TensorRecord record;
  record.save_id = 9;
  record.dtype = DType::kF32;
  record.elements_per_chunk = 262144;
  record.shape = {2, 3};
  record.lists = {{9, 0}};
  record.layout =
      ShardLayout{.global_shape = {4, 3}, .axes = {{{2, 2, false}}, {{0, 3, false}}}, .flat = {}};
  return record;
}

TensorRecord SomeTensor() {
  TensorRecord record;
  record.save_id = 9;
  record.dtype = DType::kBF16;
  record.elements_per_chunk = 262144;
  record.shape = {3, 300000};
  record.content = {1, 2};
  record.lists = {{9, 0}};
  record.derived_from = "master.x";
  record.alias_of = "y";
  record.role = TensorRole::kBuffer;
  return record;
}

std::vector<std::string> ListSeeds() {
  ChunkRef stored, constant, derived;
  stored.digest = {1, 2};
  stored.raw_bytes = 4096;
  stored.stored_bytes = 100;
  stored.address = {.save_id = 3, .ordinal = 4};
  constant.kind = ChunkKind::kConstant;
  constant.raw_bytes = 4096;
  constant.literal = std::string(4, '\0');
  derived = stored;
  derived.kind = ChunkKind::kDerived;
  return {EncodeChunkList({stored}), EncodeChunkList({constant, stored, derived})};
}

std::vector<std::string> KeySeeds() {
  const StepKey step{3, 1000};
  return {
      keys::Step(step),      keys::Tensor(step, "layer.0.weight", 2),   keys::Item(step, "loader"),
      keys::List({5, 6}),    keys::Chunk({.save_id = 7, .ordinal = 8}), keys::Save(9),
      keys::SaveBlock(9, 1), keys::Counts(9, Counted::kList, 2),        keys::Run("main"),
      keys::Tag(3, "best")};
}

std::vector<std::string> CatalogueSeeds() {
  Catalogue catalogue;
  for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
    CatalogueShard shard;
    shard.name = "layer.0.weight";
    shard.dtype = DType::kF32;
    shard.shape = {8, 4};
    shard.rank = rank;
    shard.content = {rank, 1};
    catalogue.shards.push_back(shard);
  }
  catalogue.items.push_back({"loader", 1});
  return {EncodeCatalogue(catalogue), EncodeCatalogue(Catalogue{})};
}

std::vector<std::string> RequestSeeds() {
  return {EncodeRequest({SetTagRequest{{"main", 3}, "good"}, true}),
          EncodeRequest({RemoveTagRequest{"main", "good"}, false}),
          EncodeRequest({SetMetricsRequest{{"main", 3}, {{"loss", 0.5}}}, true}),
          EncodeRequest({DropRequest{{{"main", 1}, {"main", 2}}}, true})};
}

std::vector<std::string> AnswerSeeds() {
  DropReport drop;
  drop.dropped = {{"main", 1}};
  drop.warnings = {"a warning"};
  return {EncodeAnswer({Status::Ok(), drop}), EncodeAnswer({Status::NotFound("step 9"), {}})};
}

std::vector<std::string> StateSeeds() {
  StepRecord step;
  step.save_id = 4;
  step.parent = StepKey{1, 2};
  step.metrics = {{"loss", 0.5}, {"accuracy", 0.9}};
  return {EncodeStepRecord(step), EncodeStepRecord({})};
}

std::vector<std::string> SaveSeeds() {
  SaveRecord save;
  save.chunks = save.live_chunks = 3;
  save.lists = save.live_lists = 1;
  save.stored_bytes = 300;
  save.raw_bytes = 3000;
  save.live[0] = {3, 3000, 300};
  return {EncodeSaveRecord(save), EncodeSaveRecord({})};
}

std::vector<std::string> BlockSeeds() {
  SaveBlock block;
  BaseEdge edge;
  edge.ordinal = 7;
  edge.base = {.save_id = 1, .ordinal = 2};
  edge.base_raw_bytes = 4096;
  edge.base_stored_bytes = 400;
  block.edges = {edge};
  block.planes = {{7, StreamCoder::kRaw, 2, 100}};
  return {EncodeSaveBlock(block), EncodeSaveBlock({})};
}

std::vector<std::string> ProgressSeeds() {
  TrainerProgress progress;
  progress.consumed_samples = 100;
  progress.global_step = 5;
  progress.lr_scheduler = {{"kind", std::string("cosine")},
                           {"lr", 1e-3},
                           {"milestones", std::vector<double>{10, 20}},
                           {"step", int64_t{5}}};
  progress.rng = {{0, "philox", {1, 2, 3}}};
  return {EncodeTrainerProgress(progress)};
}

std::vector<std::string> TopologySeeds() {
  Topology topology;
  topology.dp = 2;
  return {EncodeTopology(topology)};
}

std::vector<std::string> RemoteSeeds() {
  RemoteState state;
  state.number = 3;
  state.store_id = {1, 2};
  return {EncodeRemoteState(state)};
}

std::vector<std::string> BodySeeds() {
  SnapshotBody body;
  body.manifest_name = "MANIFEST-000005";
  body.manifest = "bytes";
  return {EncodeSnapshotBody(body)};
}

std::vector<std::string> LogSeeds() {
  std::string log;
  for (const size_t bytes : {10, 100, 40000}) AppendLogRecord(std::string(bytes, 'x'), &log);
  return {log.substr(0, 200), log};
}

std::vector<std::string> EditSeeds() {
  const std::string file =
      "\x67\x01\x07\x40\x02xy\x02xz\x05\x06\x03\x01"
      "a\x01";
  const std::string family = "\xc8\x01\x03\xc9\x01\x05 tags";
  return {
      "\x01\x03"
      "cmp\x02\x03\x03\x7f\x04\x80\x01" +
          file,
      family + file, "\xac\x02\x01" + file + "\x06\x01\x07", "\xc8\x01\x03\xca\x01"};
}

}  // namespace

std::vector<FuzzTarget> StoreTargets() {
  return {
      {"keys", ReadKeys, KeySeeds()},
      {"tensor_record",
       RoundTrip<DecodeTensor, EncodeTensor>,
       {EncodeTensor(SomeTensor()), EncodeTensor(SomeShard())}},
      {"step_record", RoundTrip<DecodeStepRecord, EncodeStep>, StateSeeds()},
      {"run_record",
       RoundTrip<DecodeRunRecord, EncodeRunRecord>,
       {EncodeRunRecord({3, StepKey{1, 2}}), EncodeRunRecord({1, {}})}},
      {"chunk_list", RoundTrip<DecodeChunkList, EncodeChunkList>, ListSeeds()},
      {"save_record", RoundTrip<DecodeSaveRecord, EncodeSaveRecord>, SaveSeeds()},
      {"save_block", RoundTrip<DecodeSaveBlock, EncodeSaveBlock>, BlockSeeds()},
      {"counts_record",
       RoundTrip<DecodeCounts, EncodeCounts>,
       {EncodeCounts({2, 0, kDeadBit + 100, 1, kMaxCount}), EncodeCounts({})}},
      {"item_record",
       RoundTrip<DecodeItemRecord, EncodeItem>,
       {EncodeItemRecord({1, 2}, AsBytes("value"))}},
      {"trainer_progress", RoundTrip<DecodeTrainerProgress, EncodeTrainerProgress>,
       ProgressSeeds()},
      {"topology", RoundTrip<DecodeTopology, EncodeTopology>, TopologySeeds()},
      {"manifest_log", ReadManifestLog, LogSeeds()},
      {"manifest_record", ReadManifestRecord, EditSeeds()},
      {"frame_block", ReadBlock, {std::string(40, '\0')}},
      {"backup_marker", ReadMarker, {"varve backup 1\nstore 0123\nmanifest MANIFEST-000005 123\n"}},
      {"request", RoundTrip<DecodeRequest, EncodeRequest>, RequestSeeds()},
      {"answer", RoundTrip<DecodeAnswer, EncodeAnswer>, AnswerSeeds()},
      {"catalogue", RoundTrip<DecodeRanks, EncodeRanks>, CatalogueSeeds()},
      {"remote_state", RoundTrip<DecodeRemote, EncodeRemoteState>, RemoteSeeds()},
      {"snapshot_body", RoundTrip<DecodeBody, EncodeSnapshotBody>, BodySeeds()},
      {"object_names",
       ReadNames,
       {StateName(12), NoteName(7), BlobName(3, "abc"), "MANIFEST-000012"}},
  };
}

}  // namespace varve::internal::fuzz
