#include "common/comm/traffic_ledger.h"

namespace ref5d {

TrafficCount& TrafficCount::operator+=(const TrafficCount& o) {
  calls += o.calls;
  payload += o.payload;
  wire += o.wire;
  between_nodes += o.between_nodes;
  return *this;
}

TrafficCount TrafficLedger::total(const std::string& axis, const std::string& op, const std::string& phase) const {
  TrafficCount sum;
  for (const auto& [key, count] : counts_) {
    if ((axis.empty() || key.axis == axis) && (op.empty() || key.op == op) && (phase.empty() || key.phase == phase))
      sum += count;
  }
  return sum;
}

void TrafficLedger::reset() {
  for (auto& [key, count] : counts_) count = {};
}

}  // namespace ref5d
