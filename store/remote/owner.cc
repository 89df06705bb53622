// SPDX-License-Identifier: Apache-2.0
#include "store/remote/owner.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <mutex>
#include <set>

namespace varve::internal {

namespace {

struct UnderWay {
  std::mutex mutex;
  std::set<uint64_t> ids;
};

UnderWay& AllUnderWay() {
  static UnderWay all;
  return all;
}

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the boot and the namespace in which process numbers have a meaning.
std::string DescribePlace() {
  char name[64] = {};
  const ssize_t size = ::readlink("/proc/self/ns/pid", name, sizeof(name) - 1);
  std::string place = ReadLine("/proc/sys/kernel/random/boot_id") + "/";
  for (ssize_t i = 0; i < size; ++i) {
    if (name[i] >= '0' && name[i] <= '9') place += name[i];
  }
  return place;
}

// Returns when a process was started, in ticks since the boot. Empty = there is none.
std::string StartOf(const std::string& process) {
  constexpr int kFieldsBehindName = 19;  // the start is field 22, and field 2 is the name
  std::ifstream file("/proc/" + process + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  size_t at = text.rfind(')');
  for (int i = 0; i <= kFieldsBehindName && at != text.npos; ++i) at = text.find(' ', at + 1);
  if (at == text.npos) return {};
  return text.substr(at + 1, text.find(' ', at + 1) - at - 1);
}

}  // namespace

AttemptUnderWay::AttemptUnderWay(uint64_t id) : id_(id) {
  UnderWay& all = AllUnderWay();
  const std::lock_guard lock(all.mutex);
  all.ids.insert(id);
}

AttemptUnderWay::~AttemptUnderWay() {
  UnderWay& all = AllUnderWay();
  const std::lock_guard lock(all.mutex);
  all.ids.erase(id_);
}

std::string DescribeOwner() {
  const std::string process = std::to_string(::getpid());
  return DescribePlace() + "/" + process + "/" + StartOf(process);
}

bool IsAbandoned(const RemoteAttempt& attempt) {
  if (attempt.owner == DescribeOwner()) {
    UnderWay& all = AllUnderWay();
    const std::lock_guard lock(all.mutex);
    return !all.ids.contains(attempt.id);
  }
  const std::string place = DescribePlace() + "/";
  if (!attempt.owner.starts_with(place)) return false;
  const std::string rest = attempt.owner.substr(place.size());
  const size_t slash = rest.find('/');
  if (slash == rest.npos || slash == 0) return false;
  return StartOf(rest.substr(0, slash)) != rest.substr(slash + 1);
}

}  // namespace varve::internal
