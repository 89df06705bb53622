// SPDX-License-Identifier: Apache-2.0
//
// Who is at the other end of a connection of the loopback interface. The functions are stateless.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <istream>
#include <optional>

namespace varve::internal::cli {

// Returns the user whose program has connected from port `client` to port `server` of 127.0.0.1.
// nullopt: the system does not say.
std::optional<uid_t> UserOfClient(uint16_t client, uint16_t server);

// The same, from a table as /proc/net/tcp has it.
std::optional<uid_t> FindUser(std::istream& table, uint16_t client, uint16_t server);

}  // namespace varve::internal::cli
