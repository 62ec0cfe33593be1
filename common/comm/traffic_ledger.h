// Counts communication: every operation by axis, op and phase.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace ref5d {

struct TrafficKey {
  std::string axis;   // of the mesh: "dp", "dp*cp", ...
  std::string op;     // "all_reduce", "all_gather", ...
  std::string phase;  // what it is for: "forward", "backward", "gradients", ...
  friend bool operator<(const TrafficKey& a, const TrafficKey& b) {
    return std::tie(a.axis, a.op, a.phase) < std::tie(b.axis, b.op, b.phase);
  }
};

// Of one rank. Bytes.
struct TrafficCount {
  std::int64_t calls = 0;
  std::int64_t payload = 0;        // of the tensors handed to the operations
  std::int64_t wire = 0;           // sent to other ranks
  std::int64_t between_nodes = 0;  // the part of `wire` that left the node
  TrafficCount& operator+=(const TrafficCount& o);
  friend bool operator==(const TrafficCount&, const TrafficCount&) = default;
};

class TrafficLedger {
 public:
  // Where operations of this axis and kind count from now on, in the current phase. The reference stays valid.
  [[nodiscard]] TrafficCount& count(const std::string& axis, const std::string& op) { return counts_[{axis, op, phase_}]; }
  [[nodiscard]] const std::map<TrafficKey, TrafficCount>& counts() const { return counts_; }
  // What was counted under these; an empty text stands for all.
  [[nodiscard]] TrafficCount total(const std::string& axis, const std::string& op, const std::string& phase) const;
  // Nothing may be in flight.
  void reset();

  // While it lives, operations that the host enqueues are of this phase.
  class Phase {
   public:
    Phase(TrafficLedger& ledger, std::string phase) : ledger_(ledger), outer_(std::exchange(ledger.phase_, std::move(phase))) {}
    ~Phase() { ledger_.phase_ = std::move(outer_); }
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    TrafficLedger& ledger_;
    std::string outer_;
  };

 private:
  std::map<TrafficKey, TrafficCount> counts_;
  std::string phase_ = "other";
};

}  // namespace ref5d
