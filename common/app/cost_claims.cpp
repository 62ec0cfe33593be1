#include "common/app/cost_claims.h"

#include <fmt/format.h>

namespace ref5d {

void claim_equal(Report& report, const std::string& name, std::int64_t expected, std::int64_t measured, const char* unit,
                 const std::string& note) {
  report.claims.push_back(make_claim(name, static_cast<double>(expected), static_cast<double>(measured), 0, unit, note));
}

bool is_of_axis(const TrafficRow& row, const std::string& axis) {
  return row.axis == axis || row.axis.starts_with(axis + "/") || row.axis.starts_with(axis + "[");
}

void claim_traffic_of_axis(Report& report, const std::string& axis, const std::vector<PhaseTraffic>& expected,
                           const char* operations) {
  const auto steps = static_cast<std::int64_t>(report.loss.size());
  std::int64_t all = 0, expected_of_all = 0;
  for (const PhaseTraffic& e : expected) {
    std::int64_t calls = 0, bytes = 0;
    for (const TrafficRow& row : report.traffic) {
      if (!is_of_axis(row, axis) || row.phase != e.phase) continue;
      calls += row.calls;
      bytes += row.total_wire_bytes;
    }
    if (e.calls != kAnyCalls)
      claim_equal(report, fmt::format("{}, {}: {} of rank 0", axis, e.phase, operations), steps * e.calls, calls, "");
    claim_equal(report, fmt::format("{}, {}: sent by all ranks", axis, e.phase), steps * e.bytes, bytes, "bytes");
    expected_of_all += e.bytes;
  }
  for (const TrafficRow& row : report.traffic)
    if (is_of_axis(row, axis)) all += row.total_wire_bytes;
  claim_equal(report, axis + ", everything: sent by all ranks", steps * expected_of_all, all, "bytes");
}

void claim_of_ranks(Report& report, const std::string& name, const std::vector<std::int64_t>& counted,
                    const std::function<std::int64_t(int rank)>& formula, const char* unit, const std::string& note) {
  std::int64_t others = 0;
  for (std::size_t r = 1; r < counted.size(); ++r) others += counted[r] == formula(static_cast<int>(r)) ? 0 : 1;
  claim_equal(report, name + ", rank 0", formula(0), counted[0], unit, note);
  if (counted.size() > 1) claim_equal(report, name + ": other ranks that differ", 0, others, "");
}

}  // namespace ref5d
