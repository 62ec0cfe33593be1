// Compares the order in which ranks call for communication (--check-order).
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "common/comm/group.h"

namespace ref5d {

// Two ranks must make the calls that concern both in the same order, over all their communicators together: MPI would pair the
// wrong messages, and NCCL would hang. So each tells every other rank of a communicator of each call, when the host makes it,
// and compares what it hears with its own calls, one by one. A disagreement is an error that names both calls, while nobody
// waits yet.
class OrderLedger {
 public:
  void enable(bool on) { on_ = on; }
  [[nodiscard]] bool on() const { return on_; }
  // The host calls for a collective, or for a message to or from rank `peer` of the group. Throws RunError if a peer made
  // another call in its place. detail: the root of a broadcast, the operation of a reduction.
  void called(const Group& group, const std::string& axis, const std::string& op, std::int64_t count, const std::string& dtype,
              int detail = 0);
  void sends(const Group& group, const std::string& axis, int peer, std::int64_t count, const std::string& dtype);
  void receives(const Group& group, const std::string& axis, int peer, std::int64_t count, const std::string& dtype);
  // Looks for what peers have told; throws likewise.
  void compare();
  // At the end of a run or a part of it, on all ranks: RunError if some rank has made calls that its peer has not.
  void finish(const Group& everyone);

 private:
  // Calls of a pair of ranks that have an order among themselves: collectives, and the messages in each direction. (Two ranks
  // that send to each other may each name its sends first.)
  enum Lane { kCollectives, kUp, kDown, kLanes };  // up: to the higher rank
  // A call, as it travels.
  struct Notice {
    std::array<char, 16> axis{}, op{}, dtype{};
    std::int64_t count = 0;
    std::int64_t collectives = 0;  // of the pair, before a message
    int tag = 0, detail = 0;
    int lane = kCollectives;
    [[nodiscard]] std::string text() const;
    friend bool operator==(const Notice&, const Notice&) = default;
  };
  struct Calls {
    std::deque<Notice> mine, theirs;  // not yet compared
    std::int64_t compared = 0;
  };
  struct Peer {
    std::array<Calls, kLanes> lanes;
    std::int64_t made = 0, heard = 0, collectives = 0;
  };
  struct Outgoing {
    Notice notice;
    MPI_Request request;
  };
  void message(const Group& group, const std::string& axis, int peer, std::int64_t count, const std::string& dtype, bool sent);
  void tell(int rank, Notice notice);
  void compare_with(int rank, Peer& peer) const;
  void expect_no_more(int rank, const Peer& peer) const;

  bool on_ = false;
  std::map<int, Peer> peers_;  // by rank of the world
  std::list<Outgoing> outgoing_;
};

}  // namespace ref5d
