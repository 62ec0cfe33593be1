// Waiting for MPI without spinning: a blocking call would keep the core from the rank that it waits for.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ref5d::mpi {

// Throws RunError naming `what` unless the call succeeded.
void check(int status, const char* what);

// Until `done` says true. RunError naming `what` after `timeout` (0: never).
void wait_until(const std::function<bool()>& done, const std::string& what, std::chrono::nanoseconds timeout);
void wait_all(std::vector<MPI_Request>& requests, const std::string& what, std::chrono::nanoseconds timeout);

// Posts a message of any length as pieces that MPI's int can count. Both sides cut alike.
void post_send(std::vector<MPI_Request>& requests, const std::byte* data, std::size_t bytes, int to, int tag);
void post_receive(std::vector<MPI_Request>& requests, std::byte* data, std::size_t bytes, int from, int tag);
// For tests: the length of a piece. Returns the one before. The same on all ranks.
std::size_t set_piece_bytes(std::size_t bytes);

}  // namespace ref5d::mpi
