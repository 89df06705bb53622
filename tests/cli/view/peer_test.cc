// SPDX-License-Identifier: Apache-2.0
#include "cli/view/peer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sstream>
#include <string>

namespace varve::internal::cli {
namespace {

// As the kernel prints it, on a machine whose numbers start with their low byte.
constexpr char kTable[] =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
    "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0\n"
    "   1: 0100007F:1F90 0100007F:C000 01 00000000:00000000 00:00000000 00000000  1000        0\n"
    "   2: 0100007F:C000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0\n"
    "   3: 0100007F:C001 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0        0\n"
    "   4: 0200007F:C002 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1003        0\n"
    "   5: 0100007F:C003 0100007F:1F90 01 00000000:00000000 00:00000000 00000000    1x        0\n";

std::optional<uid_t> Find(uint16_t client) {
  std::istringstream table(kTable);
  return FindUser(table, client, 0x1f90);
}

TEST(PeerTest, FindsTheUserOfTheOtherEnd) {
  if (htonl(1) == 1) GTEST_SKIP() << "the table is of a machine with another order of bytes";
  EXPECT_EQ(Find(0xc000), 1001u);
  EXPECT_EQ(Find(0xc001), std::nullopt);  // nobody holds it any more
  EXPECT_EQ(Find(0xc002), std::nullopt);  // another address
  EXPECT_EQ(Find(0xc003), std::nullopt);  // no number
  EXPECT_EQ(Find(0xc004), std::nullopt);
}

TEST(PeerTest, FindsItselfAtTheOtherEnd) {
  const int server = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(server, 1), 0);
  socklen_t size = sizeof(address);
  ::getsockname(server, reinterpret_cast<sockaddr*>(&address), &size);
  const uint16_t port = ntohs(address.sin_port);
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::getsockname(client, reinterpret_cast<sockaddr*>(&address), &size);
  EXPECT_EQ(UserOfClient(ntohs(address.sin_port), port), ::geteuid());
  EXPECT_EQ(UserOfClient(ntohs(address.sin_port), port + 1), std::nullopt);
  ::close(client);
  ::close(server);
}

}  // namespace
}  // namespace varve::internal::cli
