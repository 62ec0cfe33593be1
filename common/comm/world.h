// The processes that were started together, and what this one is among them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/comm/group.h"
#include "common/comm/order_ledger.h"
#include "common/comm/traffic_ledger.h"

namespace ref5d {

// Message tags that no communicator has (mesh.h gives those).
enum class ReservedTag { kHost = 1000, kOrder, kFailure, kGoodbye, kAlive };

// Starts MPI and ends it. One per process; a process that no launcher started is a world of one rank.
class World {
 public:
  World();
  ~World();  // waits for the others, so that no rank finds its peers gone
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool is_root() const { return rank_ == 0; }
  [[nodiscard]] const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  // This rank's number among those of its host, and how many those are: for GPUs and cores.
  [[nodiscard]] int local_rank() const { return local_rank_; }
  [[nodiscard]] int local_size() const { return local_size_; }
  // The node of a rank: its host's number, or rank / n after set_ranks_per_node(n).
  [[nodiscard]] int node(int rank) const { return nodes_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int node_count() const;
  void set_ranks_per_node(std::int64_t n);

  [[nodiscard]] TrafficLedger& traffic() { return traffic_; }
  [[nodiscard]] OrderLedger& order() { return order_; }
  // How long a rank waits for another; 0: for ever.
  [[nodiscard]] std::chrono::nanoseconds timeout() const { return timeout_; }
  void set_timeout(double seconds) { timeout_ = std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)); }

  // All ranks.
  [[nodiscard]] const Group& everyone() const { return everyone_; }

  // Ends a run that broke here: `report` prints its one line. If every other rank calls this as well, for the same mistake in
  // their flags say, the first one alone reports, and all return; otherwise the rank that knows reports, and all processes are
  // ended.
  void fail(int status, const std::function<void()>& report);

 private:
  void find_hosts();
  [[nodiscard]] bool everyone_failed(const std::function<void()>& report);

  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::vector<std::string> hosts_;
  std::vector<int> nodes_;
  Group everyone_;
  TrafficLedger traffic_;
  OrderLedger order_;
  std::chrono::nanoseconds timeout_ = std::chrono::seconds(300);
};

// The process's. std::logic_error without one.
[[nodiscard]] World& world();

}  // namespace ref5d
