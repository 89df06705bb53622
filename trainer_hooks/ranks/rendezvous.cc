// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/ranks/rendezvous.h"

#include <algorithm>
#include <array>

#include "base/coding.h"
#include "trainer_hooks/ranks/doorman.h"

namespace varve::internal {

namespace {

// A line of the table that rank 0 sends to all: 62 bytes of host, filled up with zeros, and a port.
using Line = std::array<std::byte, 64>;
constexpr size_t kHostBytes = 62;

Line Encode(const Endpoint& endpoint) {
  Line line{};
  const size_t size = std::min(endpoint.host.size(), kHostBytes);
  std::copy_n(reinterpret_cast<const std::byte*>(endpoint.host.data()), size, line.begin());
  StoreLittle(endpoint.port, line.data() + kHostBytes);
  return line;
}

Endpoint Decode(const Line& line) {
  const auto end = std::find(line.begin(), line.begin() + kHostBytes, std::byte{0});
  const auto* host = reinterpret_cast<const char*>(line.data());
  return {std::string(host, static_cast<size_t>(end - line.begin())),
          LoadLittle<uint16_t>(line.data() + kHostBytes)};
}

Status NameRank(const Status& status, const Seat& seat, int rank) {
  return status.ok() ? status
                     : Status::Unavailable("rank " + std::to_string(seat.names[rank]) + " " +
                                           status.message() + " while the group was formed");
}

// On rank 0: collects where all others say that they listen, and rank 0's own address as they see
// it.
Result<std::vector<Endpoint>> CollectEndpoints(const Seat& seat, const Connections& connections,
                                               Deadline deadline) {
  std::vector<Endpoint> endpoints(seat.size());
  for (int r = 1; r < seat.size(); ++r) {
    std::array<std::byte, sizeof(uint16_t)> port;
    VARVE_RETURN_IF_ERROR(NameRank(ReceiveAll(connections[r], port, deadline), seat, r));
    VARVE_ASSIGN_OR_RETURN(endpoints[0], LocalEndpoint(connections[r]));
    VARVE_ASSIGN_OR_RETURN(endpoints[r], RemoteEndpoint(connections[r]));
    endpoints[r].port = LoadLittle<uint16_t>(port.data());
  }
  return endpoints;
}

Mesh MakeMesh(Connections connections, const std::vector<Endpoint>& endpoints) {
  Mesh mesh{std::move(connections), {}};
  for (const Endpoint& endpoint : endpoints) mesh.hosts.push_back(endpoint.host);
  return mesh;
}

Result<Mesh> MeetAsFirst(const Seat& seat, const Endpoint& rank_0, Deadline deadline) {
  VARVE_ASSIGN_OR_RETURN(const Socket listener, Listen(rank_0));
  Connections connections(seat.size());
  VARVE_RETURN_IF_ERROR(LetIn(seat, listener, deadline, &connections));
  VARVE_ASSIGN_OR_RETURN(const auto endpoints, CollectEndpoints(seat, connections, deadline));
  std::vector<std::byte> table;
  for (const Endpoint& endpoint : endpoints) AppendBytes(Encode(endpoint), &table);
  for (int r = 1; r < seat.size(); ++r) {
    VARVE_RETURN_IF_ERROR(NameRank(SendAll(connections[r], table, deadline), seat, r));
  }
  return MakeMesh(std::move(connections), endpoints);
}

Result<Mesh> MeetAsOther(const Seat& seat, const Endpoint& rank_0, Deadline deadline) {
  Connections connections(seat.size());
  VARVE_ASSIGN_OR_RETURN(connections[0], Introduce(seat, rank_0, deadline));
  // Listens at the address that reaches rank 0. So it listens on the loopback only if the group is
  // there.
  VARVE_ASSIGN_OR_RETURN(const Endpoint mine, LocalEndpoint(connections[0]));
  VARVE_ASSIGN_OR_RETURN(const Socket listener, Listen({mine.host, 0}));
  VARVE_ASSIGN_OR_RETURN(const Endpoint listens_at, LocalEndpoint(listener));
  std::array<std::byte, sizeof(uint16_t)> port;
  StoreLittle(listens_at.port, port.data());
  VARVE_RETURN_IF_ERROR(NameRank(SendAll(connections[0], port, deadline), seat, 0));

  std::vector<Line> table(seat.size());
  const auto bytes = std::as_writable_bytes(std::span(table));
  VARVE_RETURN_IF_ERROR(NameRank(ReceiveAll(connections[0], bytes, deadline), seat, 0));
  std::vector<Endpoint> endpoints;
  for (const Line& line : table) endpoints.push_back(Decode(line));
  VARVE_RETURN_IF_ERROR(ConnectAll(seat, listener, endpoints, deadline, &connections));
  return MakeMesh(std::move(connections), endpoints);
}

}  // namespace

Result<Mesh> Meet(const Seat& seat, const Endpoint& rank_0, Deadline deadline) {
  if (seat.size() == 1) return Mesh{Connections(1), {rank_0.host}};
  return seat.rank == 0 ? MeetAsFirst(seat, rank_0, deadline) : MeetAsOther(seat, rank_0, deadline);
}

// No ranks wait in a circle. A rank that waits to be let in waits only for a lower rank, and that
// one lets others in after it has been let in itself.
Status ConnectAll(const Seat& seat, const Socket& listener, const std::vector<Endpoint>& endpoints,
                  Deadline deadline, Connections* connections) {
  for (int r = 0; r < seat.rank; ++r) {
    if ((*connections)[r].valid()) continue;
    VARVE_ASSIGN_OR_RETURN((*connections)[r], Introduce(seat, endpoints[r], deadline));
  }
  return LetIn(seat, listener, deadline, connections);
}

}  // namespace varve::internal
