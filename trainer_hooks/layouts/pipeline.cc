// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "trainer_hooks/layouts/axis.h"
#include "varve/global_names.h"

namespace varve {
using namespace internal;

namespace {

Status ExpectBelow(const char* what, int64_t number, int64_t end) {
  if (number >= 0 && number < end) return Status::Ok();
  return Status::InvalidArgument(std::string(what) + " " + std::to_string(number) +
                                 ", expected one below " + std::to_string(end));
}

Status ValidatePipeline(const Pipeline& pipeline) {
  // The most pieces. If their number overflows, it is no pipeline.
  constexpr int64_t kMost = int64_t{1} << 31;
  const bool ok = pipeline.layers >= 0 && pipeline.stages >= 1 && pipeline.stages <= kMost &&
                  pipeline.chunks >= 1 && pipeline.chunks <= kMost;
  if (ok) return Status::Ok();
  return Status::InvalidArgument("a pipeline of " + std::to_string(pipeline.layers) +
                                 " layers on " + std::to_string(pipeline.stages) + " stages of " +
                                 std::to_string(pipeline.chunks) + " chunks");
}

// Layers of a piece. Precondition: the pipeline is valid and has that piece.
Range LayersOfPiece(const Pipeline& pipeline, int64_t piece) {
  const int64_t pieces = pipeline.stages * pipeline.chunks;
  const int64_t each = pipeline.layers / pieces, remainder = pipeline.layers % pieces;
  const int64_t begin = piece * each + std::min(piece, remainder);
  return {begin, begin + each + (piece < remainder ? 1 : 0)};
}

}  // namespace

Result<Range> LayersOfChunk(const Pipeline& pipeline, int64_t stage, int64_t chunk) {
  VARVE_RETURN_IF_ERROR(ValidatePipeline(pipeline));
  VARVE_RETURN_IF_ERROR(ExpectBelow("stage", stage, pipeline.stages));
  VARVE_RETURN_IF_ERROR(ExpectBelow("chunk", chunk, pipeline.chunks));
  return LayersOfPiece(pipeline, chunk * pipeline.stages + stage);
}

Result<std::vector<int64_t>> LayersOfStage(const Pipeline& pipeline, int64_t stage) {
  std::vector<int64_t> layers;
  for (int64_t chunk = 0; chunk == 0 || chunk < pipeline.chunks; ++chunk) {
    VARVE_ASSIGN_OR_RETURN(const Range range, LayersOfChunk(pipeline, stage, chunk));
    for (int64_t layer = range.begin; layer < range.end; ++layer) layers.push_back(layer);
  }
  return layers;
}

Result<PipelinePlace> FindLayer(const Pipeline& pipeline, int64_t layer) {
  VARVE_RETURN_IF_ERROR(ValidatePipeline(pipeline));
  VARVE_RETURN_IF_ERROR(ExpectBelow("layer", layer, pipeline.layers));
  const int64_t pieces = pipeline.stages * pipeline.chunks;
  const int64_t each = pipeline.layers / pieces, remainder = pipeline.layers % pieces;
  const int64_t in_longer = remainder * (each + 1);
  const int64_t piece =
      layer < in_longer ? layer / (each + 1) : remainder + (layer - in_longer) / each;
  return PipelinePlace{.stage = piece % pipeline.stages,
                       .chunk = piece / pipeline.stages,
                       .layer = layer - LayersOfPiece(pipeline, piece).begin};
}

Result<std::vector<int64_t>> ExpertsOfRank(int64_t experts, RankOf ep) {
  VARVE_RETURN_IF_ERROR(ValidateRank(ep));
  const std::string what = std::to_string(experts) + " experts";
  if (experts < 0) return Status::InvalidArgument(what + ", expected at least 0");
  VARVE_RETURN_IF_ERROR(ExpectMultiple(what, experts, ep));
  std::vector<int64_t> numbers(static_cast<size_t>(experts / ep.ranks));
  std::iota(numbers.begin(), numbers.end(), ep.rank * static_cast<int64_t>(numbers.size()));
  return numbers;
}

}  // namespace varve
