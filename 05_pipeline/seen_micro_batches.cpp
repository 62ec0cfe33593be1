#include "05_pipeline/seen_micro_batches.h"

namespace ref5d::pipeline {

std::vector<Segment> rows_seen(const std::vector<std::int64_t>& seen, std::int64_t micro_batches,
                               const std::vector<Segment>& rows) {
  std::vector<std::int64_t> all;
  for (const Segment& s : rows)
    for (std::int64_t row = s.begin; row < s.end; ++row) all.push_back(row);
  const std::int64_t each = static_cast<std::int64_t>(all.size()) / micro_batches;
  std::vector<Segment> segments;
  for (std::int64_t m : seen) {
    for (std::int64_t i = m * each; i < (m + 1) * each; ++i) {
      const std::int64_t row = all[static_cast<std::size_t>(i)];
      if (!segments.empty() && segments.back().end == row) {
        ++segments.back().end;
      } else {
        segments.push_back({row, row + 1});
      }
    }
  }
  return segments.empty() ? std::vector<Segment>{{0, 0}} : segments;
}

}  // namespace ref5d::pipeline
