// SPDX-License-Identifier: Apache-2.0
#include "cli/view/peer.h"

#include <netinet/in.h>

#include <charconv>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace varve::internal::cli {
namespace {

constexpr const char* kEstablished = "01";

// 127.0.0.1 and a port, as the table has them: an address is printed as the number that its bytes
// make on this machine.
std::string AddressOf(uint16_t port) {
  char text[16];
  std::snprintf(text, sizeof(text), "%08X:%04X", htonl(INADDR_LOOPBACK), port);
  return text;
}

}  // namespace

std::optional<uid_t> FindUser(std::istream& table, uint16_t client, uint16_t server) {
  const std::string from = AddressOf(client);
  const std::string to = AddressOf(server);
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retransmits, user;
    words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user;
    if (local != from || remote != to || state != kEstablished) continue;
    uid_t uid = 0;
    const char* const end = user.data() + user.size();
    const auto [stop, error] = std::from_chars(user.data(), end, uid);
    if (error != std::errc() || stop != end || user.empty()) return std::nullopt;
    return uid;
  }
  return std::nullopt;
}

std::optional<uid_t> UserOfClient(uint16_t client, uint16_t server) {
  std::ifstream table("/proc/self/net/tcp");
  return FindUser(table, client, server);
}

}  // namespace varve::internal::cli
