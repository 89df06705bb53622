// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/llmc_state.h"

#include <cstring>
#include <optional>
#include <string>

#include "cli/formats/byte_reader.h"
#include "cli/formats/llmc_model.h"

namespace varve::internal::formats {
namespace {

constexpr uint32_t kStateVersion = 1;
constexpr uint32_t kMaxProcesses = 1 << 16;

// Indices of the header's integers that change from step to step.
constexpr size_t kShuffleAt = 5;
constexpr size_t kStepAt = 10;
constexpr size_t kRngAt = 20;
constexpr size_t kShardAt = 30;
constexpr size_t kSampleAt = 32;

constexpr uint64_t kGeneratorBytes =
    2520;  // of llm.c's mt19937_state, which ends the loader's state

// Returns the file from one of its header's integers on.
std::span<const std::byte> FromInt(std::span<const std::byte> file, size_t index) {
  return file.subspan(4 * index);
}

Result<uint32_t> Between(std::span<const std::byte> file, size_t index, std::string_view field,
                         uint32_t min, uint32_t max) {
  const uint32_t value = LoadU32(FromInt(file, index));
  if (min <= value && value <= max) return value;
  return ErrorAt(4 * index, std::string(field) + " is " +
                                std::to_string(static_cast<int32_t>(value)) + "; expected " +
                                std::to_string(min) +
                                (min == max ? "" : " to " + std::to_string(max)));
}

// Checks two lists of int32 and a generator. The lists are the files of tokens and the samples of
// the current one, each after its length. The file must end there.
Status CheckLoader(std::span<const std::byte> file, uint64_t begin, const FetchBytes& fetch) {
  ByteReader reader(file, fetch);
  VARVE_RETURN_IF_ERROR(reader.Skip("the part before the loader's state", begin).status());
  for (const char* list : {"the loader's list of files", "the loader's list of samples"}) {
    const uint64_t offset = reader.offset();
    VARVE_ASSIGN_OR_RETURN(const uint64_t length, reader.U64(list));
    if (length > reader.left() / 4) {
      return ErrorAt(offset, std::string(list) + " has " + std::to_string(length) +
                                 " entries; the file has room for " +
                                 std::to_string(reader.left() / 4));
    }
    VARVE_RETURN_IF_ERROR(reader.Bytes(list, 4 * length).status());
  }
  VARVE_RETURN_IF_ERROR(reader.Bytes("the loader's generator", kGeneratorBytes).status());
  if (reader.left() == 0) return Status::Ok();
  return ErrorAt(reader.offset(), "the file goes on for " + std::to_string(reader.left()) +
                                      " bytes after the loader's state");
}

// Checks what follows vectors that end at `begin`. It must be nothing, or the loader's state.
Status CheckRest(std::span<const std::byte> file, bool has_shuffle, uint64_t begin,
                 const FetchBytes& fetch) {
  if (file.size() < begin) {
    return ErrorAt(file.size(), "the file ends; its vectors need " + std::to_string(begin) +
                                    " bytes for the parameters of its model");
  }
  if (has_shuffle) return CheckLoader(file, begin, fetch);
  if (file.size() == begin) return Status::Ok();
  return ErrorAt(begin, "the file goes on for " + std::to_string(file.size() - begin) +
                            " bytes after its vectors");
}

}  // namespace

std::vector<std::string_view> LlmcStateHeader::VectorNames() const {
  std::vector<std::string_view> names = {"adam.m", "adam.v"};
  if (has_master) names.push_back("adam.master");
  return names;
}

Result<LlmcStateHeader> ParseLlmcStateHeader(std::span<const std::byte> file) {
  if (file.size() < kLlmcHeaderBytes) {
    return ErrorAt(file.size(), "the file ends inside its header of 1024 bytes");
  }
  VARVE_RETURN_IF_ERROR(
      Between(file, 0, "the magic number", kLlmcStateMagic, kLlmcStateMagic).status());
  VARVE_RETURN_IF_ERROR(Between(file, 1, "the version", kStateVersion, kStateVersion).status());
  LlmcStateHeader header;
  VARVE_ASSIGN_OR_RETURN(header.num_processes,
                         Between(file, 2, "the number of processes", 1, kMaxProcesses));
  VARVE_ASSIGN_OR_RETURN(header.rank, Between(file, 3, "the rank", 0, header.num_processes - 1));
  VARVE_ASSIGN_OR_RETURN(header.has_master, Between(file, 4, "the flag of masters", 0, 1));
  VARVE_ASSIGN_OR_RETURN(header.has_shuffle,
                         Between(file, kShuffleAt, "the flag of shuffling", 0, 1));
  VARVE_ASSIGN_OR_RETURN(header.step, Between(file, kStepAt, "the step", 0, kMaxLlmcStep));
  header.rng = FromInt(file, kRngAt).first(kLlmcRngBytes);
  header.shard_index = LoadU64(FromInt(file, kShardAt));
  header.sample_index = LoadU64(FromInt(file, kSampleAt));
  return header;
}

void WriteLlmcProgress(const LlmcStateHeader& header, std::string* file) {
  const auto write = [file](size_t index, uint64_t value, size_t size) {
    for (size_t i = 0; i < size; ++i) (*file)[4 * index + i] = static_cast<char>(value >> (8 * i));
  };
  write(kShuffleAt, header.has_shuffle ? 1 : 0, 4);
  write(kStepAt, header.step, 4);
  std::memmove(file->data() + 4 * kRngAt, header.rng.data(), kLlmcRngBytes);
  write(kShardAt, header.shard_index, 8);
  write(kSampleAt, header.sample_index, 8);
}

Result<LlmcState> ParseLlmcState(std::span<const std::byte> file, uint64_t num_parameters,
                                 const FetchBytes& fetch) {
  LlmcState state;
  if (fetch && file.size() >= kLlmcHeaderBytes) {
    VARVE_RETURN_IF_ERROR(fetch(file.first(kLlmcHeaderBytes)));
  }
  VARVE_ASSIGN_OR_RETURN(state.header, ParseLlmcStateHeader(file));
  const std::vector<std::string_view> names = state.header.VectorNames();
  const auto end_of = [&names](uint64_t elements) {
    return kLlmcHeaderBytes + 4 * elements * names.size();
  };
  // The header does not say either whether the processes share the vectors (ZeRO-1).
  uint64_t elements = num_parameters;
  Status status = CheckRest(file, state.header.has_shuffle, end_of(elements), fetch);
  if (status.code() == StatusCode::kInvalidArgument &&
      num_parameters % state.header.num_processes == 0) {
    elements = num_parameters / state.header.num_processes;
    state.is_sharded = elements != num_parameters;
    status = CheckRest(file, state.header.has_shuffle, end_of(elements), fetch);
  }
  VARVE_RETURN_IF_ERROR(status);
  for (size_t i = 0; i < names.size(); ++i) {
    state.tensors.push_back({{.name = std::string(names[i]),
                              .dtype = DType::kF32,
                              .shape = {static_cast<int64_t>(elements)}},
                             file.subspan(end_of(0) + 4 * elements * i, 4 * elements),
                             state.header.rank});
  }
  state.loader = file.subspan(end_of(elements));
  return state;
}

}  // namespace varve::internal::formats
