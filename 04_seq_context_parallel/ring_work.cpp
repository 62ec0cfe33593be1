#include "04_seq_context_parallel/ring_work.h"

#include <algorithm>
#include <numeric>

#include "common/kernels/attention.h"
#include "common/tensor/ignore_label.h"

namespace ref5d::context_parallel {

Row one_document(std::int64_t length) {
  Row row;
  row.tokens.assign(static_cast<std::size_t>(length), 0);
  row.labels.assign(static_cast<std::size_t>(length), kIgnoreLabel);
  row.order.resize(static_cast<std::size_t>(length));
  std::iota(row.order.begin(), row.order.end(), 0);
  row.start.assign(static_cast<std::size_t>(length), 0);
  row.useful = length;
  return row;
}

ByHop<std::int64_t> count_pairs(const SequenceLayout& layout, const Row& row) {
  const int ranks = layout.ranks();
  std::vector<Row> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(part_of(row, layout.of(r)));
  ByHop<std::int64_t> pairs(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    const Row& queries = parts[static_cast<std::size_t>(r)];
    for (int hop = 0; hop < ranks; ++hop) {
      const Row& keys = parts[static_cast<std::size_t>((r - hop + ranks) % ranks)];
      pairs[static_cast<std::size_t>(r)].push_back(visible_pairs(queries.order, queries.start, keys.order, 1));
    }
  }
  return pairs;
}

std::int64_t pairs_of(const ByHop<std::int64_t>& pairs, int rank) {
  const auto& hops = pairs[static_cast<std::size_t>(rank)];
  return std::accumulate(hops.begin(), hops.end(), std::int64_t{0});
}

std::int64_t pairs_of_all(const ByHop<std::int64_t>& pairs) {
  std::int64_t all = 0;
  for (std::size_t r = 0; r < pairs.size(); ++r) all += pairs_of(pairs, static_cast<int>(r));
  return all;
}

int hops_with_work(const ByHop<std::int64_t>& pairs, int rank) {
  const auto& hops = pairs[static_cast<std::size_t>(rank)];
  return static_cast<int>(std::count_if(hops.begin(), hops.end(), [](std::int64_t n) { return n > 0; }));
}

namespace {
struct Extremes {
  std::int64_t least, most;
};
Extremes extremes_of_hop(const ByHop<std::int64_t>& pairs, std::size_t hop) {
  Extremes e{pairs[0][hop], pairs[0][hop]};
  for (const auto& rank : pairs) e = {std::min(e.least, rank[hop]), std::max(e.most, rank[hop])};
  return e;
}
}  // namespace

std::int64_t unevenness(const ByHop<std::int64_t>& pairs) {
  std::int64_t most = 0;
  for (std::size_t hop = 0; hop < pairs.size(); ++hop) {
    const Extremes e = extremes_of_hop(pairs, hop);
    most = std::max(most, e.most - e.least);
  }
  return most;
}

double balance(const ByHop<std::int64_t>& pairs) {
  std::int64_t lasts = 0;
  for (std::size_t hop = 0; hop < pairs.size(); ++hop) lasts += extremes_of_hop(pairs, hop).most;
  return static_cast<double>(pairs_of_all(pairs)) / static_cast<double>(lasts * static_cast<std::int64_t>(pairs.size()));
}

double contiguous_balance(std::int64_t ranks, std::int64_t each) {
  return static_cast<double>(ranks * each + 1) / static_cast<double>(each + 1 + 2 * (ranks - 1) * each);
}
double contiguous_balance(std::int64_t ranks) { return static_cast<double>(ranks) / 2 / (static_cast<double>(ranks) - 0.5); }

RingTimeline ring_timeline(const ByHop<double>& hop_us, const Link& link, std::int64_t bytes) {
  const std::size_t n = hop_us.size();
  std::vector<double> there(n, 0.0), ended(n, 0.0);  // of the hop that comes next: its keys; the hop before it
  RingTimeline t;
  for (std::size_t hop = 0; hop < n; ++hop) {
    std::vector<double> next_there(n), next_ended(n);
    for (std::size_t r = 0; r < n; ++r) {
      const std::size_t before = (r + n - 1) % n;
      const double start = std::max(there[r], ended[r]), us = hop_us[r][hop];
      next_ended[r] = start + us;
      if (us > 0) t.spans.push_back({static_cast<int>(r), static_cast<int>(hop), start, us, false});
      if (hop + 1 == n) continue;
      const double leaves = std::max({there[before], ended[before], there[r], ended[r]});
      next_there[r] = leaves + link.us(bytes);
      t.spans.push_back({static_cast<int>(r), static_cast<int>(hop + 1), leaves, link.us(bytes), true});
    }
    there = std::move(next_there);
    ended = std::move(next_ended);
  }
  t.total_us = *std::max_element(ended.begin(), ended.end());
  return t;
}

}  // namespace ref5d::context_parallel
