// What a layout costs, beside what the ledgers counted: claims that several lessons make.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "common/comm/group.h"
#include "common/verify/report.h"

namespace ref5d {

// A claim of whole numbers, which must be equal.
void claim_equal(Report& report, const std::string& name, std::int64_t expected, std::int64_t measured, const char* unit,
                 const std::string& note = "");

// What an axis of the mesh sends in one step, by what it is for: operations of rank 0, and bytes of all ranks together.
struct PhaseTraffic {
  std::string phase;
  std::int64_t calls, bytes;
};
// In place of a number of calls: which are not claimed.
inline constexpr std::int64_t kAnyCalls = -1;
// Whether a row of the traffic is of an axis, a part of it or some of its ranks: "cp", "cp/inner", "tp[0-1]".
[[nodiscard]] bool is_of_axis(const TrafficRow& row, const std::string& axis);
// Claims each phase, and that the axis sends nothing else. The report has the traffic of all its steps. operations: what rank
// 0's calls are named.
void claim_traffic_of_axis(Report& report, const std::string& axis, const std::vector<PhaseTraffic>& expected,
                           const char* operations);

// Numbers that each rank of a group has counted, a plain struct, by rank: on rank 0, nothing elsewhere.
template <typename Counts>
[[nodiscard]] std::vector<Counts> gather_counts(const Group& group, const Counts& mine) {
  const auto* begin = reinterpret_cast<const std::byte*>(&mine);
  std::vector<Counts> all;
  for (const Bytes& of_rank : gather_on_host(group, Bytes(begin, begin + sizeof(mine))))
    std::memcpy(&all.emplace_back(), of_rank.data(), sizeof(mine));
  return all;
}
// One of the numbers, by rank.
template <typename Counts>
[[nodiscard]] std::vector<std::int64_t> column(const std::vector<Counts>& counts, std::int64_t Counts::*counted) {
  std::vector<std::int64_t> all;
  for (const Counts& c : counts) all.push_back(c.*counted);
  return all;
}
// Of every rank: the first by name, and how many of the others differ from the formula.
void claim_of_ranks(Report& report, const std::string& name, const std::vector<std::int64_t>& counted,
                    const std::function<std::int64_t(int rank)>& formula, const char* unit, const std::string& note = "");

}  // namespace ref5d
