// SPDX-License-Identifier: Apache-2.0
#include "store/ops/chunk_presence.h"

#include <set>
#include <string>
#include <string_view>

#include "base/util.h"
#include "codec/frame.h"

namespace varve::internal {

Result<ChunkPresence> ChunkPresence::Of(const StoreImpl& store) {
  const Database& db = *store.database();
  VARVE_ASSIGN_OR_RETURN(const auto lost, db.FindLostTables());
  std::set<std::string> lost_files;
  for (const LostTable& table : lost) lost_files.insert(table.file);
  ChunkPresence presence(&db);
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, db.BeginRead());
  for (const auto& file : db.FilesOf(Family::kChunks)) {
    const auto first = keys::ParseChunk(file.smallestkey);
    const auto last = keys::ParseChunk(file.largestkey);
    if (!first.has_value() || !last.has_value() || lost_files.contains(file.name)) continue;
    presence.ranges_.emplace(*first, *last);
  }
  return presence;
}

Status ChunkPresence::Find(ChunkAddress address) {
  const auto name = [](ChunkAddress chunk) {
    return std::to_string(chunk.save_id) + "/" + std::to_string(chunk.ordinal);
  };
  std::set<ChunkAddress> wanted = {address};
  while (!wanted.empty()) {
    const ChunkAddress at = *wanted.rbegin();  // all that name it have been looked at
    wanted.erase(at);
    if (!LiesInFile(at)) {
      return Status::Corruption((at == address ? "chunk " + name(at)
                                               : "chunk " + name(at) + ", which chunk " +
                                                     name(address) + " is predicted from,") +
                                " lies in no file");
    }
    VARVE_ASSIGN_OR_RETURN(const std::vector<ChunkAddress> sources, SourcesOf(at));
    for (const ChunkAddress source : sources) {
      if (source < at) wanted.insert(source);
    }
  }
  return Status::Ok();
}

Result<std::vector<ChunkAddress>> ChunkPresence::SourcesOf(ChunkAddress address) {
  std::vector<ChunkAddress> sources;
  if (const std::optional<SaveBlock>& block = FindBlock(address)) {
    for (const BaseEdge& edge : block->EdgesOf(address.ordinal)) sources.push_back(edge.base);
    return sources;
  }
  rocksdb::PinnableSlice frame;
  VARVE_RETURN_IF_ERROR(db_->GetFrame(address, &frame));
  VARVE_ASSIGN_OR_RETURN(const FrameInfo info,
                         ParseFrame(AsBytes(std::string_view(frame.data(), frame.size()))));
  for (const FrameSource& source : info.sources()) sources.push_back(source.address);
  return sources;
}

bool ChunkPresence::LiesInFile(ChunkAddress address) const {
  const auto after = ranges_.upper_bound(address);
  return after != ranges_.begin() && std::prev(after)->second >= address;
}

const std::optional<SaveBlock>& ChunkPresence::FindBlock(ChunkAddress address) {
  const uint32_t number = address.ordinal / kCountsPerBlock;
  const auto [it, is_new] = blocks_.try_emplace({address.save_id, number});
  if (!is_new) return it->second;
  const auto value = db_->Get(Family::kBirths, keys::SaveBlock(address.save_id, number));
  if (!value.ok() || !value->has_value()) return it->second;
  Result<SaveBlock> block = DecodeSaveBlock(**value);
  if (block.ok()) it->second = *std::move(block);
  return it->second;
}

}  // namespace varve::internal
