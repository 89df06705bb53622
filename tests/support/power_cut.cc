// SPDX-License-Identifier: Apache-2.0
#include "tests/support/power_cut.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;
using Kind = DiskOp::Kind;

constexpr size_t kBlockBytes = 512;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool IsOfNames(const DiskOp& op) {
  switch (op.kind) {
    case Kind::kFile:
    case Kind::kFolder:
    case Kind::kLink:
    case Kind::kUnlink:
    case Kind::kRename:
    case Kind::kExchange:
      return true;
    default:
      return false;
  }
}

bool HasTwoFolders(const DiskOp& op) {
  return op.kind == Kind::kRename || op.kind == Kind::kExchange;
}

// Zeros at the end become a hole.
void WriteFile(const fs::path& path, const std::string& bytes) {
  const size_t last = bytes.find_last_not_of('\0');
  const size_t written = last == std::string::npos ? 0 : last + 1;
  {
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(written));
    if (!out) std::abort();
  }
  if (written != bytes.size()) fs::resize_file(path, bytes.size());
}

}  // namespace

std::string_view ToString(PowerCut cut) {
  switch (cut) {
    case PowerCut::kAllLost:
      return "all lost";
    case PowerCut::kTorn:
      return "torn";
    case PowerCut::kOnlyNames:
      return "only names";
    case PowerCut::kRandom:
      return "random";
    case PowerCut::kNothing:
      return "nothing lost";
  }
  return "";
}

Disk::Disk() { At(0).is_folder = true; }

Disk::Node& Disk::At(int number) {
  const auto index = static_cast<size_t>(number);
  if (index >= nodes_.size()) nodes_.resize(index + 1);
  return nodes_[index];
}

void Disk::ApplyNames(const DiskOp& op, std::vector<Names*>& names) {
  Names& here = *names[static_cast<size_t>(op.folder)];
  Names& there = *names[static_cast<size_t>(op.to_folder)];
  switch (op.kind) {
    case Kind::kUnlink:
      here.erase(op.name);
      return;
    case Kind::kRename: {
      const int number = op.number;
      here.erase(op.name);
      there[op.to_name] = number;
      return;
    }
    case Kind::kExchange:
      std::swap(here[op.name], there[op.to_name]);
      return;
    default:
      here[op.name] = op.number;
  }
}

void Disk::Apply(const DiskOp& op) {
  if (IsOfNames(op)) {
    At(op.number).is_folder |= op.kind == Kind::kFolder;
    std::vector<Names*> names;
    for (Node& node : nodes_) names.push_back(&node.names);
    ApplyNames(op, names);
    unsynced_names_.push_back(op);
    return;
  }
  if (op.kind == Kind::kMark) return;
  if (op.kind == Kind::kSync) return Sync(op.number);
  Node& node = At(op.number);
  if (op.kind == Kind::kTruncate) {
    node.now.resize(op.at, '\0');
  } else {
    node.now.resize(std::max<size_t>(node.now.size(), op.at + op.bytes.size()), '\0');
    node.now.replace(op.at, op.bytes.size(), op.bytes);
  }
  node.kept = std::min(node.kept, node.now.size());
  node.is_dirty = true;
  last_written_ = op.number;
}

void Disk::Sync(int number) {
  Node& node = At(number);
  if (!node.is_folder) {
    node.synced = node.now;
    node.kept = node.now.size();
    node.is_dirty = false;
    return;
  }
  // Names of one folder become durable in order. One that goes to another folder takes along what
  // happened to that one before.
  std::set<int> folders = {number};
  std::vector<bool> is_due(unsynced_names_.size());
  for (size_t i = unsynced_names_.size(); i-- > 0;) {
    const DiskOp& op = unsynced_names_[i];
    const bool two = HasTwoFolders(op);
    is_due[i] = folders.contains(op.folder) || (two && folders.contains(op.to_folder));
    if (is_due[i] && two) folders.insert({op.folder, op.to_folder});
  }
  std::vector<Names*> names;
  for (Node& each : nodes_) names.push_back(&each.synced_names);
  std::vector<DiskOp> left;
  for (size_t i = 0; i < is_due.size(); ++i) {
    if (is_due[i]) {
      ApplyNames(unsynced_names_[i], names);
    } else {
      left.push_back(std::move(unsynced_names_[i]));
    }
  }
  unsynced_names_ = std::move(left);
}

// The names of all folders when the first of those that are not synced are there, too.
std::vector<Disk::Names> Disk::NamesAfter(size_t num_unsynced) const {
  std::vector<Names> all;
  all.reserve(nodes_.size());
  for (const Node& node : nodes_) all.push_back(node.synced_names);
  std::vector<Names*> names;
  names.reserve(all.size());
  for (Names& each : all) names.push_back(&each);
  for (size_t i = 0; i < num_unsynced; ++i) ApplyNames(unsynced_names_[i], names);
  return all;
}

std::string Disk::Torn(const Node& node, uint64_t seed) const {
  const std::string &now = node.now, &old = node.synced;
  const size_t same = static_cast<size_t>(std::ranges::mismatch(now, old).in1 - now.begin());
  const size_t torn = same + (now.size() - same) / 2, begin = torn / kBlockBytes * kBlockBytes;
  const size_t end = std::min(now.size(), begin + kBlockBytes);
  // A disk writes a block as a whole. So one that was there before is the old or the new one.
  const bool is_new = Mix(seed, torn) % 2 == 0;
  std::string bytes = now.substr(0, end);
  for (size_t i = begin; i < end; ++i) {
    if (i >= old.size()) {
      if (i >= torn) bytes[i] = static_cast<char>(Mix(seed, i));
    } else if (!is_new) {
      bytes[i] = old[i];
    }
  }
  if (old.size() > end) bytes += old.substr(end);
  return bytes;
}

std::string Disk::BytesOf(int number, PowerCut cut, uint64_t seed) const {
  const Node& node = nodes_[static_cast<size_t>(number)];
  if (!node.is_dirty) return node.synced;
  if (cut == PowerCut::kRandom) {
    constexpr PowerCut kAny[] = {PowerCut::kAllLost, PowerCut::kTorn, PowerCut::kOnlyNames,
                                 PowerCut::kNothing};
    cut = kAny[Mix(seed, static_cast<uint64_t>(number)) % std::size(kAny)];
    if (cut == PowerCut::kTorn) return Torn(node, seed);
  }
  switch (cut) {
    case PowerCut::kTorn:
      return number == last_written_ ? Torn(node, seed) : node.synced;
    case PowerCut::kOnlyNames: {
      std::string bytes = node.synced.substr(0, node.kept);
      bytes.resize(node.now.size(), '\0');
      return bytes;
    }
    case PowerCut::kNothing:
      return node.now;
    default:
      return node.synced;
  }
}

void Disk::Make(PowerCut cut, uint64_t seed, const fs::path& to) const {
  const size_t all = unsynced_names_.size();
  const size_t there = cut == PowerCut::kAllLost  ? 0
                       : cut == PowerCut::kRandom ? Mix(seed, all) % (all + 1)
                                                  : all;
  const std::vector<Names> names = NamesAfter(there);
  std::map<int, fs::path> made;
  const std::function<void(int, const fs::path&)> make = [&](int number, const fs::path& path) {
    fs::create_directory(path);
    for (const auto& [name, child] : names[static_cast<size_t>(number)]) {
      if (nodes_[static_cast<size_t>(child)].is_folder) {
        make(child, path / name);
      } else if (const auto first = made.find(child); first != made.end()) {
        fs::create_hard_link(first->second, path / name);
      } else {
        WriteFile(path / name, BytesOf(child, cut, seed));
        made[child] = path / name;
      }
    }
  };
  make(0, to);
}

}  // namespace varve::internal::testing
