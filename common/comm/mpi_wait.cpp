#include "common/comm/mpi_wait.h"

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

void check(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw RunError(std::string(what) + " failed: " + std::string(text, static_cast<std::size_t>(length)));
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

void wait_all(std::vector<MPI_Request>& requests, const std::string& what, std::chrono::nanoseconds timeout) {
  const auto all_done = [&] {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    return done != 0;
  };
  try {
    wait_until(all_done, what, timeout);
  } catch (...) {  // what comes late must not be written where nothing is any more
    for (MPI_Request& r : requests) {
      if (r == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&r);
      MPI_Request_free(&r);
    }
    throw;
  }
  requests.clear();
}

void post_send(std::vector<MPI_Request>& requests, const std::byte* data, std::size_t bytes, int to, int tag) {
  for_each_piece(bytes, [&](std::size_t at, int n) {
    requests.emplace_back();
    check(MPI_Isend(data + at, n, MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests.back()), "MPI_Isend");
  });
}

void post_receive(std::vector<MPI_Request>& requests, std::byte* data, std::size_t bytes, int from, int tag) {
  for_each_piece(bytes, [&](std::size_t at, int n) {
    requests.emplace_back();
    check(MPI_Irecv(data + at, n, MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests.back()), "MPI_Irecv");
  });
}

std::size_t set_piece_bytes(std::size_t bytes) { return std::exchange(piece_bytes, bytes); }

}  // namespace ref5d::mpi
