// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/ranks/doorman.h"

#include <algorithm>
#include <array>
#include <list>
#include <optional>
#include <thread>

#include "base/coding.h"
#include "base/digest.h"
#include "base/util.h"
#include "trainer_hooks/ranks/rank_group_base.h"

namespace varve::internal {

namespace {

using Clock = std::chrono::steady_clock;

// Both start with a magic and have the same size. A verdict has another magic than a hello, so a
// program that echoes what it gets is recognised as a stranger.
//
//   offset  bytes  of a hello          of a verdict
//        0      8  kHelloMagic         kVerdictMagic
//        8     16  digest of the job   the same
//       24      4  rank                the verdict
//       28      4  size                size
constexpr uint64_t kHelloMagic = 0x314f4c4c45485256;    // "VRHELLO1"
constexpr uint64_t kVerdictMagic = 0x31544c53524e5256;  // "VRNRSLT1"
constexpr uint64_t kJobSeed = 0x7261726b73;
using Card = std::array<std::byte, 64>;

enum class Verdict : uint32_t { kWelcome = 0, kWrongSize, kUnknownRank, kAlreadyHere };

constexpr size_t kMaxVisitors = 256;           // who have not said hello yet
constexpr std::chrono::seconds kPatience{10};  // with each of them
constexpr std::chrono::milliseconds kBetweenTries{20};

Card MakeCard(uint64_t magic, const Seat& seat, uint32_t rank_or_verdict) {
  const Digest job = ComputeDigest(kJobSeed, AsBytes(seat.job));
  Card card{};
  StoreLittle(magic, card.data());
  StoreLittle(job.lo, card.data() + 8);
  StoreLittle(job.hi, card.data() + 16);
  StoreLittle(rank_or_verdict, card.data() + 24);
  StoreLittle(static_cast<uint32_t>(seat.size()), card.data() + 28);
  return card;
}
uint32_t RankOf(const Card& card) { return LoadLittle<uint32_t>(card.data() + 24); }
uint32_t SizeOf(const Card& card) { return LoadLittle<uint32_t>(card.data() + 28); }

// True when magic and job are right.
bool IsCard(const Card& card, uint64_t magic, const Seat& seat) {
  const Card right = MakeCard(magic, seat, 0);
  return std::equal(card.begin(), card.begin() + 24, right.begin());
}

Status ReadVerdict(const Card& card, const Seat& seat) {
  if (!IsCard(card, kVerdictMagic, seat)) {
    return Status::Unavailable("the program that answers is no rank of this job");
  }
  switch (static_cast<Verdict>(RankOf(card))) {
    case Verdict::kWelcome:
      return Status::Ok();
    case Verdict::kWrongSize:
      return Status::Unavailable("it is of a group of " + std::to_string(SizeOf(card)) +
                                 " ranks, this one of a group of " + std::to_string(seat.size()));
    case Verdict::kUnknownRank:
      return Status::Unavailable("it does not expect this rank");
    case Verdict::kAlreadyHere:
      return Status::Unavailable("another process has come as this rank");
  }
  return Status::Unavailable("its verdict " + std::to_string(RankOf(card)) + " is unknown");
}

Result<Socket> TryIntroduce(const Seat& seat, const Endpoint& to, Deadline deadline) {
  VARVE_ASSIGN_OR_RETURN(Socket socket, Connect(to, deadline));
  const Card hello = MakeCard(kHelloMagic, seat, static_cast<uint32_t>(seat.rank));
  VARVE_RETURN_IF_ERROR(SendAll(socket, hello, deadline));
  Card verdict;
  VARVE_RETURN_IF_ERROR(ReceiveAll(socket, verdict, deadline));
  VARVE_RETURN_IF_ERROR(ReadVerdict(verdict, seat));
  return socket;
}

// Somebody at the door.
struct Visitor {
  Socket socket;
  Deadline leaves_at;
  Card hello;
  size_t received = 0;
};

class Doorman {
 public:
  Doorman(const Seat& seat, const Socket& listener, Connections* connections)
      : seat_(seat), listener_(listener), connections_(*connections) {}

  Status LetAllIn(Deadline deadline) {
    while (!Absent().empty()) {
      if (!WaitAtDoor(deadline)) return TooLate();
      VARVE_RETURN_IF_ERROR(OpenDoor());
      HearVisitors();
    }
    return Status::Ok();
  }

 private:
  std::vector<int> Absent() const {
    std::vector<int> absent;
    for (int r = seat_.rank + 1; r < seat_.size(); ++r) {
      if (!connections_[r].valid()) absent.push_back(r);
    }
    return absent;
  }

  // Returns false when the deadline has passed.
  bool WaitAtDoor(Deadline deadline) const {
    std::vector<pollfd> fds{{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    Deadline wake_at = deadline;
    for (const Visitor& visitor : visitors_) {
      fds.push_back({.fd = visitor.socket.fd(), .events = POLLIN, .revents = 0});
      wake_at = std::min(wake_at, visitor.leaves_at);
    }
    return Poll(fds, wake_at) || Clock::now() < deadline;
  }

  Status OpenDoor() {
    while (true) {
      VARVE_ASSIGN_OR_RETURN(Socket socket, Accept(listener_));
      if (!socket.valid()) return Status::Ok();
      if (visitors_.size() == kMaxVisitors) visitors_.pop_front();
      visitors_.push_back({std::move(socket), Clock::now() + kPatience, {}, 0});
    }
  }

  void HearVisitors() {
    const auto now = Clock::now();
    std::erase_if(visitors_, [&](Visitor& visitor) {
      const Moved moved =
          ReceiveSome(visitor.socket, std::span(visitor.hello).subspan(visitor.received));
      visitor.received += moved.bytes;
      if (visitor.received == visitor.hello.size()) Judge(&visitor);
      return moved.closed || visitor.received == visitor.hello.size() || now >= visitor.leaves_at;
    });
  }

  // Keeps the connection of an expected rank, and answers every rank of this job.
  void Judge(Visitor* visitor) {
    if (!IsCard(visitor->hello, kHelloMagic, seat_)) return;
    const Verdict verdict = VerdictOn(visitor->hello);
    const Card answer = MakeCard(kVerdictMagic, seat_, static_cast<uint32_t>(verdict));
    const Moved moved = SendSome(visitor->socket, answer, {});
    if (verdict != Verdict::kWelcome) {
      turned_away_ = "; a rank " + std::to_string(RankOf(visitor->hello)) + " of " +
                     std::to_string(SizeOf(visitor->hello)) + " was turned away";
    } else if (moved.bytes == answer.size()) {
      connections_[RankOf(visitor->hello)] = std::move(visitor->socket);
    }
  }

  Verdict VerdictOn(const Card& hello) const {
    const uint32_t rank = RankOf(hello);
    if (SizeOf(hello) != static_cast<uint32_t>(seat_.size())) return Verdict::kWrongSize;
    if (rank <= static_cast<uint32_t>(seat_.rank) || rank >= connections_.size()) {
      return Verdict::kUnknownRank;
    }
    return connections_[rank].valid() ? Verdict::kAlreadyHere : Verdict::kWelcome;
  }

  Status TooLate() const {
    const auto at = LocalEndpoint(listener_);
    return Status::Unavailable(RankList(Absent(), seat_.names) + " did not come to rank " +
                               std::to_string(seat_.names[seat_.rank]) +
                               (at.ok() ? " at " + ToString(*at) : "") + " in time" + turned_away_);
  }

  const Seat& seat_;
  const Socket& listener_;
  Connections& connections_;
  std::list<Visitor> visitors_;
  std::string turned_away_;
};

}  // namespace

Result<Socket> Introduce(const Seat& seat, const Endpoint& to, Deadline deadline) {
  Status why;
  while (true) {
    auto socket = TryIntroduce(seat, to, deadline);
    if (socket.ok()) return socket;
    // A try that the deadline cuts short says less than the one before it.
    if (why.ok() || Clock::now() < deadline) why = socket.status();
    if (Clock::now() + kBetweenTries >= deadline) {
      return why.WithContext("rank " + std::to_string(seat.names[seat.rank]) +
                             " does not get through to " + ToString(to));
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

Status LetIn(const Seat& seat, const Socket& listener, Deadline deadline,
             Connections* connections) {
  return Doorman(seat, listener, connections).LetAllIn(deadline);
}

}  // namespace varve::internal
