#include "common/verify/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/device/error.h"
#include "common/verify/table.h"

namespace ref5d {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// Both for reading and for checking against a formula.
std::string both_bytes(std::int64_t bytes) { return fmt::format("{} ({})", grouped_digits(bytes), human_bytes(bytes)); }

std::string traffic_table(const std::vector<TrafficRow>& traffic) {
  if (traffic.empty()) return "";
  const bool several_nodes =
      std::any_of(traffic.begin(), traffic.end(), [](const TrafficRow& t) { return t.total_between_nodes_bytes > 0; });
  Rows rows{{"traffic", "op", "phase", "calls", "payload bytes", "wire bytes", "all ranks: calls", "wire bytes"}};
  if (several_nodes) rows[0].emplace_back("between nodes");
  bool formula = false;
  for (const TrafficRow& t : traffic) {
    const std::string mark = t.wire_counted ? "" : "*";
    formula = formula || !t.wire_counted;
    rows.push_back({t.axis, t.op, t.phase, grouped_digits(t.calls), both_bytes(t.payload_bytes),
                    both_bytes(t.wire_bytes) + mark, grouped_digits(t.total_calls), grouped_digits(t.total_wire_bytes) + mark});
    if (several_nodes) rows.back().push_back(grouped_digits(t.total_between_nodes_bytes) + mark);
  }
  const char* legend = formula ? "* by formula, not counted at the sends\n" : "";
  return format_table(rows, "lllrrrrrr") + legend;
}

// Rank 0's categories, beside the largest peak of any rank where there are several.
std::string memory_table(const std::vector<MemoryRow>& memory) {
  if (memory.empty()) return "";
  const std::int64_t shown = std::min_element(memory.begin(), memory.end(), [](const MemoryRow& x, const MemoryRow& y) {
                               return x.rank < y.rank;
                             })->rank;
  const bool several = std::any_of(memory.begin(), memory.end(), [&](const MemoryRow& m) { return m.rank != shown; });
  std::vector<std::string> categories;
  for (const MemoryRow& m : memory) {
    if (std::find(categories.begin(), categories.end(), m.category) == categories.end()) categories.push_back(m.category);
  }
  Rows rows{{fmt::format("memory of rank {}", shown), "current", "bytes", "peak", "bytes"}};
  if (several) rows[0].insert(rows[0].end(), {"highest peak of any rank", "rank"});
  for (const std::string& category : categories) {
    MemoryRow own, highest;
    bool any = false;
    for (const MemoryRow& m : memory) {
      if (m.category != category) continue;
      if (m.rank == shown) own = m;
      if (!any || m.peak_bytes > highest.peak_bytes) highest = m;
      any = true;
    }
    rows.push_back({category, human_bytes(own.current_bytes), grouped_digits(own.current_bytes), human_bytes(own.peak_bytes),
                    grouped_digits(own.peak_bytes)});
    if (several) rows.back().insert(rows.back().end(), {both_bytes(highest.peak_bytes), fmt::format("{}", highest.rank)});
  }
  return format_table(rows, "lrrrrrr");
}

// The layers of the last step.
std::string expert_table(const std::vector<ExpertLoad>& experts) {
  if (experts.empty()) return "";
  const std::int64_t last = experts.back().step;
  Rows rows{{fmt::format("experts in step {}", last + 1), "choices", "of the busiest", "of the idlest", "busiest / even",
             "busiest rank / even", "dropped", "padding"}};
  for (const ExpertLoad& l : experts) {
    if (l.step != last) continue;
    const auto [least, most] = std::minmax_element(l.choices.begin(), l.choices.end());
    rows.push_back({fmt::format("layer {}", l.layer), grouped_digits(l.all_choices()),
                    fmt::format("{} (expert {})", grouped_digits(*most), most - l.choices.begin()),
                    fmt::format("{} (expert {})", grouped_digits(*least), least - l.choices.begin()),
                    fmt::format("{:.2f}", l.imbalance()), fmt::format("{:.2f}", l.rank_imbalance()),
                    fmt::format("{:.1f}%", 100 * l.dropped()), fmt::format("{:.1f}%", 100 * l.padding())});
  }
  return format_table(rows, "lrrrrrrr");
}

std::string timing_table(const std::map<std::string, double>& timing) {
  if (timing.empty()) return "";
  Rows rows{{"timing", "value"}};
  for (const auto& [key, value] : timing) rows.push_back({key, fmt::format("{:.6g}", value)});
  return format_table(rows, "lr");
}

}  // namespace

namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}
double greatest_over_even(const std::vector<std::int64_t>& numbers) {
  const std::int64_t all = sum_of(numbers);
  if (all == 0) return 1;
  const auto greatest = static_cast<double>(*std::max_element(numbers.begin(), numbers.end()));
  return greatest * static_cast<double>(numbers.size()) / static_cast<double>(all);
}
// What of `all` is not among `some`.
double missing_share(std::int64_t all, std::int64_t some) {
  return all == 0 ? 0 : 1 - static_cast<double>(some) / static_cast<double>(all);
}

}  // namespace

std::int64_t ExpertLoad::all_choices() const { return sum_of(choices); }
std::int64_t ExpertLoad::all_rows() const { return sum_of(rows); }
double ExpertLoad::imbalance() const { return greatest_over_even(choices); }
double ExpertLoad::rank_imbalance() const { return greatest_over_even(rank_rows); }
double ExpertLoad::dropped() const { return missing_share(routed, all_rows()); }
double ExpertLoad::padding() const { return missing_share(computed, all_rows()); }

std::string Report::tables() const {
  std::string text;
  for (const std::string& table : {checks_table(checks), claims_table(claims), traffic_table(traffic), memory_table(memory),
                                   expert_table(experts), timing_table(timing)}) {
    if (!table.empty()) text += (text.empty() ? "" : "\n") + table;
  }
  return text;
}

void Report::print_tables(std::FILE* out) const {
  const std::string text = tables();
  std::fwrite(text.data(), 1, text.size(), out);
}

int Report::exit_status() const {
  const bool pass = std::all_of(checks.begin(), checks.end(), [](const Check& c) { return c.pass; }) &&
                    std::all_of(claims.begin(), claims.end(), [](const Claim& c) { return c.pass; });
  return pass ? kExitOk : kExitCheckFailed;
}

}  // namespace ref5d
