// SPDX-License-Identifier: Apache-2.0
#include "store/remote/remote_state.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/digest.h"
#include "base/util.h"

namespace varve::internal {

namespace {

constexpr std::string_view kStateTitle = "varve remote state 1";
constexpr std::string_view kBodyTitle = "varve snapshot 1";
constexpr std::string_view kNotePrefix = "seen-";
constexpr size_t kNumberDigits = 20;
constexpr size_t kHexDigits = 16;

// The words of one line. Each Take returns false when the next word is missing or malformed.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}

  bool Take(std::string* word) {
    if (rest_.empty()) return false;
    const size_t end = std::min(rest_.find(' '), rest_.size());
    *word = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return !word->empty();
  }
  bool Take(uint64_t* number, int base = 10) {
    std::string word;
    if (!Take(&word)) return false;
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, *number, base);
    return error == std::errc() && stop == end;
  }
  bool TakeHex(uint64_t* number) { return Take(number, 16); }
  bool Take(Digest* digest) {
    std::string word;
    if (!Take(&word) || word.size() != 2 * kHexDigits) return false;
    Words high(std::string_view(word).substr(0, kHexDigits));
    Words low(std::string_view(word).substr(kHexDigits));
    return high.TakeHex(&digest->hi) && low.TakeHex(&digest->lo);
  }
  bool Take(BlobRange* range) {
    return Take(&range->blob) && Take(&range->offset) && Take(&range->bytes) &&
           Take(&range->digest) && range->bytes <= UINT64_MAX - range->offset;
  }
  bool AtEnd() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// Takes the next line off the text. nullopt = there is none that ends.
std::optional<std::string_view> TakeLine(std::string_view* text) {
  const size_t end = text->find('\n');
  if (end == text->npos) return std::nullopt;
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end + 1);
  return line;
}

std::string ToText(const BlobRange& range) {
  return range.blob + " " + std::to_string(range.offset) + " " + std::to_string(range.bytes) + " " +
         ToHex(range.digest);
}

// The last line names the digest of all before it.
std::string WithDigest(const std::string& text) {
  const Digest digest = ComputeDigest(0, AsBytes(text));
  return text + "end " + ToHex(digest) + "\n";
}

Status Malformed(const std::string& where, std::string_view line) {
  return Status::Corruption(where + ": a malformed line \"" + std::string(line.substr(0, 80)) +
                            "\"");
}

bool IsName(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  });
}

// Checks title and digest. Returns what lies between them.
Result<std::string_view> Unseal(std::string_view text, std::string_view title,
                                const std::string& where) {
  constexpr size_t kEndBytes = 4 + 4 * 8 + 1;  // "end ", the digest, the end of the line
  std::string_view rest = text;
  const auto first = TakeLine(&rest);
  if (!first.has_value() || *first != title) {
    return Status::Corruption(where + " does not start with \"" + std::string(title) +
                              "\": it is damaged, or a newer varve made it");
  }
  Digest digest;
  Words end(text.size() < kEndBytes ? std::string_view()
                                    : text.substr(text.size() - kEndBytes, kEndBytes - 1));
  std::string word;
  const bool is_sealed = rest.size() >= kEndBytes && text.ends_with('\n') && end.Take(&word) &&
                         word == "end" && end.Take(&digest) && end.AtEnd();
  if (!is_sealed || digest != ComputeDigest(0, AsBytes(text.substr(0, text.size() - kEndBytes)))) {
    return Status::Corruption(where + " is damaged: its digest is wrong");
  }
  return rest.substr(0, rest.size() - kEndBytes);
}

// Such names sort as their numbers.
std::string NumberedName(std::string_view prefix, uint64_t number) {
  char text[kNumberDigits + 1];
  std::snprintf(text, sizeof(text), "%020llu", static_cast<unsigned long long>(number));
  return std::string(prefix) + text;
}

std::optional<uint64_t> ParseNumberedName(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  uint64_t number = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_whole = stop == name.data() + name.size() && error == std::errc();
  if (name.size() != kNumberDigits || !is_whole || number == 0) return std::nullopt;
  return number;
}

}  // namespace

bool RemoteState::IsOpen(uint64_t attempt) const {
  return std::any_of(open.begin(), open.end(),
                     [attempt](const RemoteAttempt& each) { return each.id == attempt; });
}

const RemoteSnapshot* RemoteState::Find(uint64_t snapshot) const {
  const auto it =
      std::find_if(snapshots.begin(), snapshots.end(),
                   [snapshot](const RemoteSnapshot& each) { return each.number == snapshot; });
  return it == snapshots.end() ? nullptr : &*it;
}

std::string StateName(uint64_t number) { return NumberedName(kStatePrefix, number); }

std::optional<uint64_t> ParseStateName(std::string_view name) {
  return ParseNumberedName(kStatePrefix, name);
}

std::string NoteName(uint64_t number) { return NumberedName(kNotePrefix, number); }

std::optional<uint64_t> ParseNoteName(std::string_view name) {
  return ParseNumberedName(kNotePrefix, name);
}

std::string EncodeRemoteState(const RemoteState& state) {
  std::string text = std::string(kStateTitle) + "\nnumber " + std::to_string(state.number) +
                     "\nstore " + ToHex(state.store_id) + "\nnext " +
                     std::to_string(state.next_snapshot) + "\nfence " +
                     std::to_string(state.fence) + "\n";
  for (const RemoteSnapshot& snapshot : state.snapshots) {
    text += "snapshot " + std::to_string(snapshot.number) + " " +
            std::to_string(snapshot.created_us) + " " + std::to_string(snapshot.total_bytes) + " " +
            ToText(snapshot.body) + "\n";
  }
  for (const RemoteAttempt& attempt : state.open) {
    text += "open " + Hex16(attempt.id) + " " + attempt.owner + "\n";
  }
  return WithDigest(text);
}

Result<RemoteState> DecodeRemoteState(std::string_view text, const std::string& where) {
  VARVE_ASSIGN_OR_RETURN(std::string_view rest, Unseal(text, kStateTitle, where));
  RemoteState state;
  while (!rest.empty()) {
    const auto line = TakeLine(&rest);
    if (!line.has_value()) return Malformed(where, rest);
    Words words(*line);
    std::string what;
    bool is_good = words.Take(&what);
    if (what == "number") {
      is_good = words.Take(&state.number);
    } else if (what == "store") {
      is_good = words.Take(&state.store_id);
    } else if (what == "next") {
      is_good = words.Take(&state.next_snapshot);
    } else if (what == "fence") {
      is_good = words.Take(&state.fence);
    } else if (what == "snapshot") {
      RemoteSnapshot& snapshot = state.snapshots.emplace_back();
      is_good = words.Take(&snapshot.number) && words.Take(&snapshot.created_us) &&
                words.Take(&snapshot.total_bytes) && words.Take(&snapshot.body);
    } else if (what == "open") {
      RemoteAttempt& attempt = state.open.emplace_back();
      is_good = words.TakeHex(&attempt.id) && words.Take(&attempt.owner);
    } else {
      is_good = false;
    }
    if (!is_good || !words.AtEnd()) return Malformed(where, *line);
  }
  if (state.number == 0) return Status::Corruption(where + " has no number");
  return state;
}

const BodyTable* SnapshotBody::FindIdentity(std::string_view identity) const {
  const auto it = std::find_if(tables.begin(), tables.end(), [identity](const BodyTable& table) {
    return table.identity == identity;
  });
  return it == tables.end() ? nullptr : &*it;
}

std::string EncodeSnapshotBody(const SnapshotBody& body) {
  const FormatFile& format = body.format;
  std::string text = std::string(kBodyTitle) + "\nformat " + std::to_string(format.version) + " " +
                     ToHex(format.store_id) + " " + Hex16(format.digest_seed) + " " +
                     Hex16(format.compatible) + " " + Hex16(format.read_compatible) + " " +
                     Hex16(format.incompatible) + "\n";
  for (const BodyTable& table : body.tables) {
    text += "table " + table.name + " " + table.identity + " " + ToText(table.where) + "\n";
  }
  text += "manifest " + body.manifest_name + " " + std::to_string(body.manifest.size()) + "\n" +
          body.manifest + "\n";
  return WithDigest(text);
}

Result<SnapshotBody> DecodeSnapshotBody(std::string_view text, const std::string& where) {
  VARVE_ASSIGN_OR_RETURN(std::string_view rest, Unseal(text, kBodyTitle, where));
  SnapshotBody body;
  while (true) {
    const auto line = TakeLine(&rest);
    if (!line.has_value()) return Malformed(where, rest);
    Words words(*line);
    std::string what;
    if (!words.Take(&what)) return Malformed(where, *line);
    if (what == "format") {
      FormatFile& format = body.format;
      uint64_t version = 0;
      if (!words.Take(&version) || version > UINT32_MAX || !words.Take(&format.store_id) ||
          !words.TakeHex(&format.digest_seed) || !words.TakeHex(&format.compatible) ||
          !words.TakeHex(&format.read_compatible) || !words.TakeHex(&format.incompatible) ||
          !words.AtEnd()) {
        return Malformed(where, *line);
      }
      format.version = static_cast<uint32_t>(version);
    } else if (what == "table") {
      BodyTable& table = body.tables.emplace_back();
      const bool is_good = words.Take(&table.name) && words.Take(&table.identity) &&
                           words.Take(&table.where) && words.AtEnd();
      // These become the names of files.
      if (!is_good || !IsName(table.name) || !table.name.ends_with(".sst")) {
        return Malformed(where, *line);
      }
    } else if (what == "manifest") {
      uint64_t bytes = 0;
      const bool is_good = words.Take(&body.manifest_name) && words.Take(&bytes) && words.AtEnd();
      if (!is_good || !body.manifest_name.starts_with("MANIFEST-") || !IsName(body.manifest_name) ||
          rest.empty() || bytes != rest.size() - 1 || rest.back() != '\n') {
        return Malformed(where, *line);
      }
      body.manifest = rest.substr(0, bytes);
      return body;
    } else {
      return Malformed(where, *line);
    }
  }
}

std::string BlobName(uint64_t attempt, std::string_view content) {
  const std::string rest = Hex16(attempt) + "-" + std::string(content);
  return Hex16(ComputeDigest(0, AsBytes(rest)).lo).substr(0, 2) + "-" + rest;
}

std::optional<BlobNameParts> ParseBlobName(std::string_view name) {
  constexpr size_t kAttemptAt = 3, kContentAt = kAttemptAt + kHexDigits + 1;
  if (name.size() <= kContentAt || name[kContentAt - 1] != '-') return std::nullopt;
  BlobNameParts parts;
  Words attempt(name.substr(kAttemptAt, kHexDigits));
  if (!attempt.TakeHex(&parts.attempt)) return std::nullopt;
  parts.content = name.substr(kContentAt);
  if (BlobName(parts.attempt, parts.content) != name) return std::nullopt;
  return parts;
}

}  // namespace varve::internal
