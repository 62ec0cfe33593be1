// Ranks that communicate, and talk between their hosts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ref5d {

using Bytes = std::vector<std::byte>;

// A list of ranks and a tag: all that a communicator is. (MPI_Comm_split would take a quarter of a second on 16 ranks.)
struct Group {
  std::vector<int> ranks;  // of the world, in the group's order
  int rank = 0;            // this process's place among them
  int tag = 0;
  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
};

// Between hosts, for what is not part of training: settings, reports, tensors that are compared or saved. Every rank of the
// group calls the same in the same order. They first wait for all of this rank's streams, count in no ledger, and wait without
// spinning; with patient = true for as long as it takes, else no longer than the world's time-out.

// Everyone's bytes, by rank, on rank 0; nothing on the others.
[[nodiscard]] std::vector<Bytes> gather_on_host(const Group& group, const Bytes& mine, bool patient = false);
// Rank 0's bytes, on all.
[[nodiscard]] Bytes broadcast_on_host(const Group& group, const Bytes& of_rank_0, bool patient = false);
// Everyone's, on all.
[[nodiscard]] std::vector<Bytes> all_gather_on_host(const Group& group, const Bytes& mine);
// Rank 0's bytes, on all; rank 0 returns when all have them (pitfall P61).
[[nodiscard]] Bytes share_on_host(const Group& group, const Bytes& of_rank_0);
void barrier_on_host(const Group& group, bool patient = false);

// While rank 0 works alone, it sends signs of life, and the others wait for its next message as long as they come. RunError
// after the world's time-out without one.
void send_sign_of_life(const Group& group);
void wait_while_alive(const Group& group);

[[nodiscard]] Bytes to_bytes(const std::string& text);
[[nodiscard]] std::string to_text(const Bytes& bytes);
// A number and back.
[[nodiscard]] Bytes to_bytes(double value);
[[nodiscard]] double to_number(const Bytes& bytes);

}  // namespace ref5d
