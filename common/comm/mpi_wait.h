// Messages over MPI, waited for without spinning: a blocking call would keep the core from the rank that it waits for.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ref5d::mpi {

// Throws RunError naming `what` unless the call succeeded.
void check(int status, const std::string& what);

// Until `done` says true. RunError naming `what` after `timeout` (0: never).
void wait_until(const std::function<bool()>& done, const std::string& what, std::chrono::nanoseconds timeout);

// Messages of any length on their way, cut into pieces that MPI's int can count, on both sides alike. What they read and write
// must stay until they are complete. Peers are ranks of the world.
class Messages {
 public:
  void send(const std::byte* data, std::size_t bytes, int to, int tag);
  void receive(std::byte* data, std::size_t bytes, int from, int tag);
  // Whether all are. RunError naming `what` and the peer if one failed, or had another length than was to be received.
  [[nodiscard]] bool complete(const std::string& what);
  // Until they are complete. RunError after `timeout` (0: never), and then they are given up.
  void wait(const std::string& what, std::chrono::nanoseconds timeout);

 private:
  struct Piece {
    int peer;
    int received_bytes;  // that are expected; -1: it is sent
  };
  static void check_piece(const std::string& what, const Piece& piece, const MPI_Status& status, bool failed);

  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Piece> pieces_;
};

// For tests: the length of a piece. Returns the one before. The same on all ranks.
std::size_t set_piece_bytes(std::size_t bytes);

}  // namespace ref5d::mpi
