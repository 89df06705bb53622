// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/ranks/mpi_transfer.h"

#include <algorithm>
#include <string>

namespace varve::internal {

namespace {

// Messages travel in pieces, so that counts fit an int and little is copied at a time.
constexpr size_t kPieceBytes = 4 << 20;
constexpr int kMaxPiecesOnTheirWay = 8;

}  // namespace

Status FromMpi(const char* what, int code) {
  if (code == MPI_SUCCESS) return Status::Ok();
  char text[MPI_MAX_ERROR_STRING];
  int size = 0;
  MPI_Error_string(code, text, &size);
  return Status::Unavailable(std::string(what) + ": " + std::string(text, size));
}

MpiTransfer::MpiTransfer(MPI_Comm comm, int rank, const Call& call,
                         std::span<const MessageView> to_each)
    : comm_(comm),
      call_(call),
      links_(to_each.size()),
      requests_(2 * to_each.size(), MPI_REQUEST_NULL) {
  for (int i = 1; i < size(); ++i) {
    const int other = (rank + i) % size();
    others_.push_back(other);
    links_[other].head_out = {call, to_each[other].size()};
    links_[other].rest = to_each[other];
  }
}

Status MpiTransfer::Begin() {
  for (const int r : others_) {
    VARVE_RETURN_IF_ERROR(Receive(r, std::as_writable_bytes(std::span(&links_[r].head_in, 1))));
    VARVE_RETURN_IF_ERROR(Send(r, std::as_bytes(std::span(&links_[r].head_out, 1))));
  }
  return Status::Ok();
}

Status MpiTransfer::Send(int to, std::span<const std::byte> bytes) {
  links_[to].is_sending = true;
  return FromMpi("MPI_Isend", MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to,
                                        kTag, comm_, &requests_[size() + to]));
}

Status MpiTransfer::Receive(int from, std::span<std::byte> into) {
  links_[from].is_receiving = true;
  return FromMpi("MPI_Irecv", MPI_Irecv(into.data(), static_cast<int>(into.size()), MPI_BYTE, from,
                                        kTag, comm_, &requests_[from]));
}

Result<bool> MpiTransfer::Advance() {
  std::vector<int> ended(requests_.size());
  int num_ended = 0;
  VARVE_RETURN_IF_ERROR(
      FromMpi("MPI_Testsome", MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(),
                                           &num_ended, ended.data(), MPI_STATUSES_IGNORE)));
  if (num_ended == MPI_UNDEFINED) num_ended = 0;  // there are no requests
  for (int i = 0; i < num_ended; ++i) {
    if (ended[i] < size()) {
      VARVE_RETURN_IF_ERROR(OnReceived(ended[i]));
    } else {
      links_[ended[i] - size()].is_sending = false;
    }
  }
  VARVE_RETURN_IF_ERROR(SendPieces());
  return num_ended > 0;
}

// A rank gets pieces only after it has come. So a rank that waits for it holds no copies of them.
Status MpiTransfer::SendPieces() {
  auto on_their_way = std::ranges::count_if(
      links_, [](const Link& link) { return link.is_sending && link.has_head; });
  for (const int r : others_) {
    Link& link = links_[r];
    if (link.is_sending || link.rest.empty() || CallOf(r) == nullptr) continue;
    if (++on_their_way > kMaxPiecesOnTheirWay) break;
    const MessageView next = link.rest.first(std::min(link.rest.size(), kPieceBytes));
    link.rest = link.rest.subspan(next.size());
    link.piece.assign(next.begin(), next.end());
    VARVE_RETURN_IF_ERROR(Send(r, link.piece));
  }
  return Status::Ok();
}

Status MpiTransfer::OnReceived(int from) {
  Link& link = links_[from];
  link.is_receiving = false;
  link.has_head = true;
  // Bytes of another call are not wanted.
  const uint64_t left = link.head_in.bytes - link.message.size();
  if (left == 0 || link.head_in.call != call_) return Status::Ok();
  const auto bytes = static_cast<size_t>(std::min<uint64_t>(left, kPieceBytes));
  link.message.resize(link.message.size() + bytes);
  return Receive(from, std::span(link.message).last(bytes));
}

std::vector<int> MpiTransfer::Waiting() const {
  std::vector<int> waiting;
  for (int r = 0; r < size(); ++r) {
    const Link& link = links_[r];
    if (link.is_receiving || link.is_sending || !link.rest.empty()) waiting.push_back(r);
  }
  return waiting;
}

const Call* MpiTransfer::CallOf(int rank) const {
  return links_[rank].has_head ? &links_[rank].head_in.call : nullptr;
}

}  // namespace varve::internal
