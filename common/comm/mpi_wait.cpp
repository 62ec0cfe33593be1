#include "common/comm/mpi_wait.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/device/error.h"
#include "common/device/polled.h"

namespace ref5d::mpi {

namespace {
std::size_t piece_bytes = std::size_t{1} << 30;

template <typename Post>
void for_each_piece(std::size_t bytes, const Post& post) {
  for (std::size_t at = 0; at < bytes; at += piece_bytes) post(at, static_cast<int>(std::min(piece_bytes, bytes - at)));
}
}  // namespace

void check(int status, const std::string& what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  throw RunError(what + " failed: " + all.substr(0, all.find(", error stack")));
}

void wait_until(const std::function<bool()>& done, const std::string& what, std::chrono::nanoseconds timeout) {
  const PolledWork work{.name = what, .start = {}, .poll = {}, .timeout = timeout};
  detail::Patience patience;
  patience.begin();
  for (int idle = 1; !done(); ++idle) {
    patience.check(work);
    detail::back_off(idle);
  }
}

void Messages::send(const std::byte* data, std::size_t bytes, int to, int tag) {
  for_each_piece(bytes, [&](std::size_t at, int n) {
    requests_.emplace_back();
    pieces_.push_back({to, -1});
    check(MPI_Isend(data + at, n, MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests_.back()), "MPI_Isend");
  });
}

void Messages::receive(std::byte* data, std::size_t bytes, int from, int tag) {
  for_each_piece(bytes, [&](std::size_t at, int n) {
    requests_.emplace_back();
    pieces_.push_back({from, n});
    check(MPI_Irecv(data + at, n, MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests_.back()), "MPI_Irecv");
  });
}

bool Messages::complete(const std::string& what) {
  int done = 0;
  statuses_.resize(requests_.size());
  const int status = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
  const bool failed = status != MPI_SUCCESS;
  if (failed || done != 0)
    for (std::size_t i = 0; i < pieces_.size(); ++i) check_piece(what, pieces_[i], statuses_[i], failed);
  check(status, what);
  if (done != 0) *this = {};
  return done != 0;
}

void Messages::check_piece(const std::string& what, const Piece& piece, const MPI_Status& status, bool failed) {
  if (failed && status.MPI_ERROR == MPI_ERR_PENDING) return;
  if (failed && status.MPI_ERROR != MPI_SUCCESS) {
    int error_class = 0;
    MPI_Error_class(status.MPI_ERROR, &error_class);
    if (error_class == MPI_ERR_TRUNCATE)
      throw RunError(fmt::format("{}: rank {} sent more than the {} bytes expected", what, piece.peer, piece.received_bytes));
    check(status.MPI_ERROR,
          fmt::format("{}: a message {} rank {}", what, piece.received_bytes < 0 ? "to" : "from", piece.peer));
  }
  if (piece.received_bytes < 0) return;
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (bytes != piece.received_bytes)
    throw RunError(
        fmt::format("{}: rank {} sent {} bytes where {} were expected", what, piece.peer, bytes, piece.received_bytes));
}

void Messages::wait(const std::string& what, std::chrono::nanoseconds timeout) {
  try {
    wait_until([&] { return complete(what); }, what, timeout);
  } catch (...) {  // what comes late must not be written where nothing is any more
    for (MPI_Request& r : requests_) {
      if (r == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&r);
      MPI_Request_free(&r);
    }
    throw;
  }
}

std::size_t set_piece_bytes(std::size_t bytes) { return std::exchange(piece_bytes, bytes); }

}  // namespace ref5d::mpi
