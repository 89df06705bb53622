// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, with a connection between each two. An exchange sends and receives on
// all connections at once, whichever is ready. So no two ranks wait for each other, however long
// messages are.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/coding.h"
#include "base/util.h"
#include "trainer_hooks/ranks/message_stream.h"
#include "trainer_hooks/ranks/rank_group_base.h"
#include "trainer_hooks/ranks/rendezvous.h"

namespace varve {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;

// How long a rank that gives up tries to say so, and how long it stays before it closes so that the
// others can hear it.
constexpr std::chrono::seconds kGoodbyePatience{5};

struct Peer {
  Socket socket;  // invalid: the rank itself
  MessageWriter writer;
  MessageReader reader;

  bool is_done() const { return writer.done() && reader.state() == MessageReader::State::kDone; }
  // It has not received or not sent its message, and never will.
  bool is_gone() const {
    if (reader.state() == MessageReader::State::kGone) return true;
    return !writer.done() && writer.broken() && !reader.wants_more();
  }
  short events() const {
    const bool writes = !writer.done() && !writer.broken();
    return static_cast<short>((writes ? POLLOUT : 0) | (reader.wants_more() ? POLLIN : 0));
  }
};

class SocketGroup : public RankGroupBase {
 public:
  SocketGroup(Seat seat, Mesh mesh, std::chrono::milliseconds timeout)
      : RankGroupBase(seat.rank, seat.names),
        job_(std::move(seat.job)),
        hosts_(std::move(mesh.hosts)),
        timeout_(timeout),
        peers_(size()) {
    for (int r = 0; r < size(); ++r) peers_[r].socket = std::move(mesh.connections[r]);
  }
  ~SocketGroup() override {
    if (has_given_up_) AwaitOthersLeaving();
  }

  // No descriptor changes before the group is destroyed. A rank that gives up ends its side of the
  // connections.
  std::vector<int> gone() const override {
    std::vector<pollfd> fds;
    for (const Peer& peer : peers_) {
      fds.push_back({.fd = peer.socket.fd(), .events = POLLRDHUP, .revents = 0});
    }
    std::vector<int> ranks;
    if (::poll(fds.data(), fds.size(), 0) <= 0) return ranks;
    for (int r = 0; r < size(); ++r) {
      if (peers_[r].socket.valid() && fds[r].revents != 0) ranks.push_back(r);
    }
    return ranks;
  }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

 protected:
  Result<std::vector<Message>> Exchange(const Call& call,
                                        std::span<const MessageView> to_each) override {
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      peers_[r].reader.Begin(call);
      peers_[r].writer.Begin(call, to_each[r]);
    }
    VARVE_RETURN_IF_ERROR(MoveAll(call));
    std::vector<Message> received(size());
    for (int r = 0; r < size(); ++r) received[r] = peers_[r].reader.TakeMessage();
    received[rank()].assign(to_each[rank()].begin(), to_each[rank()].end());
    return received;
  }

  void GiveUp(const Status& why) override {
    const Message reason = ReasonOf(why);
    const Call goodbye{kGoodbye, static_cast<int32_t>(why.code()), num_calls()};
    const Deadline deadline = Clock::now() + kGoodbyePatience;
    for (Peer& peer : peers_) peer.writer.CutShort();
    Flush(deadline);
    for (Peer& peer : peers_) {
      if (peer.socket.valid() && peer.writer.done()) peer.writer.Begin(goodbye, reason);
    }
    Flush(deadline);
    for (const Peer& peer : peers_) {
      if (peer.socket.valid()) EndSending(peer.socket);
    }
    has_given_up_ = true;
  }

  Result<std::unique_ptr<RankGroup>> Subgroup(int new_rank,
                                              const std::vector<int>& members) override {
    const Deadline deadline = Clock::now() + timeout_;
    VARVE_ASSIGN_OR_RETURN(const Socket listener, Listen({hosts_[rank()], 0}));
    VARVE_ASSIGN_OR_RETURN(const Endpoint mine, LocalEndpoint(listener));
    VARVE_ASSIGN_OR_RETURN(const auto ports, AllGather(std::as_bytes(std::span(&mine.port, 1))));
    std::vector<Endpoint> endpoints;
    for (const int member : members) {
      if (ports[member].size() != sizeof(mine.port)) {
        return Status::InvalidArgument("split: rank " + std::to_string(names()[member]) +
                                       " sent no port");
      }
      endpoints.push_back({hosts_[member], LoadLittle<uint16_t>(ports[member].data())});
    }
    Seat seat{job_ + "/" + std::to_string(++num_splits_) + "/" + std::to_string(members[0]),
              new_rank, NamesOf(members)};
    Mesh mesh{Connections(members.size()), {}};
    VARVE_RETURN_IF_ERROR(ConnectAll(seat, listener, endpoints, deadline, &mesh.connections));
    for (const Endpoint& endpoint : endpoints) mesh.hosts.push_back(endpoint.host);
    std::unique_ptr<RankGroup> group =
        std::make_unique<SocketGroup>(std::move(seat), std::move(mesh), timeout_);
    return group;
  }

 private:
  Status MoveAll(const Call& call) {
    Deadline deadline = Clock::now() + timeout_;
    Deadline says_so = Clock::now() + kSaysItWaitsAfter;
    while (true) {
      VARVE_RETURN_IF_ERROR(Verdict(call));
      const std::vector<int> waiting = Waiting();
      if (waiting.empty()) return Status::Ok();
      if (MoveSome(std::min(deadline, says_so))) {
        deadline = Clock::now() + timeout_;
      } else if (Clock::now() >= says_so && Clock::now() < deadline) {
        SayItWaits(call, waiting, timeout_);
        says_so = Deadline::max();
      } else if (Clock::now() >= deadline) {
        return Missing(call, waiting,
                       "did not come within " + std::to_string(timeout_.count()) + " ms");
      }
    }
  }

  // Returns how the call went on the other ranks. A rank that says why it fails is believed before
  // one that is just gone, because giving up comes before leaving.
  Status Verdict(const Call& call) const {
    std::vector<int> gone;
    for (int r = 0; r < size(); ++r) {
      if (peers_[r].reader.state() == MessageReader::State::kGaveUp) {
        return GaveUp(call, r, peers_[r].reader.goodbye());
      }
      if (peers_[r].is_gone()) gone.push_back(r);
    }
    for (int r = 0; r < size(); ++r) {
      const MessageReader& reader = peers_[r].reader;
      if (reader.state() == MessageReader::State::kOtherCall) {
        return OtherCall(call, r, reader.other_call());
      }
      if (reader.state() == MessageReader::State::kMalformed) {
        return Missing(call, {r}, "sends something that is no message of this version");
      }
    }
    if (gone.empty()) return Status::Ok();
    return Missing(call, gone,
                   gone.size() == 1 ? "is gone: its connection is closed"
                                    : "are gone: their connections are closed");
  }

  std::vector<int> Waiting() const {
    std::vector<int> waiting;
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && !peers_[r].is_done()) waiting.push_back(r);
    }
    return waiting;
  }

  // Waits until something can move and moves it. Returns whether anything moved.
  bool MoveSome(Deadline deadline) {
    std::vector<pollfd> fds;
    for (const Peer& peer : peers_) {
      const short events = peer.socket.valid() ? peer.events() : short{0};
      fds.push_back({.fd = events != 0 ? peer.socket.fd() : -1, .events = events, .revents = 0});
    }
    if (!Poll(fds, deadline)) return false;
    size_t moved = 0;
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (fds[r].revents == 0) continue;
      Peer& peer = peers_[r];
      moved += peer.writer.Advance(peer.socket) + peer.reader.Advance(peer.socket);
    }
    return moved > 0;
  }

  // Sends the rest of what has started, to all ranks that take it.
  void Flush(Deadline deadline) {
    while (true) {
      std::vector<pollfd> fds;
      for (Peer& peer : peers_) {
        if (!peer.socket.valid()) continue;
        peer.writer.Advance(peer.socket);
        if (peer.writer.done() || peer.writer.broken()) continue;
        fds.push_back({.fd = peer.socket.fd(), .events = POLLOUT, .revents = 0});
      }
      if (fds.empty() || !Poll(fds, deadline)) return;
    }
  }

  // Closing a connection with unread bytes would discard what the other side has not yet read,
  // including the goodbye. So this reads everything that still comes, until the other side gives up
  // too.
  void AwaitOthersLeaving() {
    const Deadline deadline = Clock::now() + kGoodbyePatience;
    std::array<std::byte, 4096> unread;
    while (Clock::now() < deadline) {
      std::vector<pollfd> fds;
      for (Peer& peer : peers_) {
        if (!peer.socket.valid()) continue;
        if (ReceiveSome(peer.socket, unread).closed) {
          peer.socket = Socket();
        } else {
          fds.push_back({.fd = peer.socket.fd(), .events = POLLIN, .revents = 0});
        }
      }
      if (fds.empty() || !Poll(fds, deadline)) return;
    }
  }

  static Message ReasonOf(const Status& why) {
    const MessageView text = AsBytes(why.message());
    const MessageView reason = text.first(std::min<size_t>(text.size(), kGoodbyeBytes));
    return {reason.begin(), reason.end()};
  }

  const std::string job_;
  const std::vector<std::string> hosts_;
  std::chrono::milliseconds timeout_;
  std::vector<Peer> peers_;
  uint64_t num_splits_ = 0;
  bool has_given_up_ = false;
};

Result<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value != nullptr) return std::string(value);
  return Status::InvalidArgument(std::string("the environment has no ") + name);
}

Result<int> NumberVariable(const char* name, int least, int greatest) {
  VARVE_ASSIGN_OR_RETURN(const std::string text, Variable(name));
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least &&
      number <= greatest) {
    return number;
  }
  return Status::InvalidArgument(std::string(name) + " is '" + text + "' in the environment, not " +
                                 std::to_string(least) + " to " + std::to_string(greatest));
}

constexpr int kMaxRanks = 1 << 16;

}  // namespace

Result<std::unique_ptr<RankGroup>> SocketRanks(const SocketRanksOptions& options) {
  if (options.size < 1 || options.size > kMaxRanks || options.rank < 0 ||
      options.rank >= options.size) {
    return Status::InvalidArgument("there is no rank " + std::to_string(options.rank) +
                                   " in a group of " + std::to_string(options.size));
  }
  if (options.port == 0 && options.size > 1) {
    return Status::InvalidArgument("the port of rank 0 is not given");
  }
  Seat seat{options.job, options.rank, std::vector<int>(options.size)};
  std::iota(seat.names.begin(), seat.names.end(), 0);
  VARVE_ASSIGN_OR_RETURN(
      Mesh mesh, Meet(seat, {options.host, options.port}, Clock::now() + options.meeting_timeout));
  std::unique_ptr<RankGroup> group =
      std::make_unique<SocketGroup>(std::move(seat), std::move(mesh), options.timeout);
  return group;
}

Result<SocketRanksOptions> SocketRanksFromEnv() {
  SocketRanksOptions options;
  VARVE_ASSIGN_OR_RETURN(options.size, NumberVariable("WORLD_SIZE", 1, kMaxRanks));
  VARVE_ASSIGN_OR_RETURN(options.rank, NumberVariable("RANK", 0, options.size - 1));
  VARVE_ASSIGN_OR_RETURN(options.host, Variable("MASTER_ADDR"));
  const bool has_own_port = std::getenv("VARVE_MASTER_PORT") != nullptr;
  VARVE_ASSIGN_OR_RETURN(
      const int port,
      NumberVariable(has_own_port ? "VARVE_MASTER_PORT" : "MASTER_PORT", 1, UINT16_MAX));
  options.port = static_cast<uint16_t>(port);
  if (const auto job = Variable("TORCHELASTIC_RUN_ID"); job.ok()) options.job = *job;
  return options;
}

}  // namespace varve
