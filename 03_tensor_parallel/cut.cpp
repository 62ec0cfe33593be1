#include "03_tensor_parallel/cut.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/device/error.h"

namespace ref5d::tensor_parallel {

Range share_of(std::int64_t n, int ranks, int rank) {
  const std::int64_t each = n / ranks, larger = n % ranks;
  const auto begin = [&](std::int64_t r) { return r * each + std::min(r, larger); };
  return {begin(rank), begin(rank + 1)};
}

Heads heads_of(const GptConfig& c, int ranks, int rank) { return heads_of(c.heads, c.heads / c.kv_heads, 0, ranks, rank); }

Heads heads_of(std::int64_t heads, std::int64_t group, std::int64_t offset, int ranks, int rank) {
  const auto kv_of = [&](int r) {
    const Range query = share_of(heads, ranks, r);
    return Range{(query.begin + offset) / group, (query.end + offset + group - 1) / group};
  };
  Heads h;
  h.query = share_of(heads, ranks, rank);
  h.kv = kv_of(rank);
  h.offset = h.query.begin + offset - h.kv.begin * group;
  for (std::int64_t head = h.kv.begin; head < h.kv.end; ++head) {
    Range holders{ranks, 0};
    for (int r = 0; r < ranks; ++r) {
      const Range kv = kv_of(r);
      if (head < kv.begin || head >= kv.end) continue;
      holders = {std::min<std::int64_t>(holders.begin, r), r + 1};
    }
    h.holders.push_back(holders);
  }
  return h;
}

std::vector<Segment> segments_of(const Range& r, std::int64_t width) { return {{r.begin * width, r.end * width}}; }

std::vector<Segment> kv_segments(const Heads& heads, std::int64_t width, std::int64_t begin) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < heads.holders.size(); ++i) {
    const std::int64_t head = heads.kv.begin + static_cast<std::int64_t>(i), replicas = heads.holders[i].size();
    const std::int64_t head_begin = begin + head * width;
    if (!segments.empty() && segments.back().replicas == replicas) {
      segments.back().end = head_begin + width;
    } else {
      segments.push_back({head_begin, head_begin + width, replicas});
    }
  }
  return segments;
}

std::vector<Segment> packed_segments(const GptConfig& c, const Heads& heads) {
  const std::int64_t d = c.head_dim();
  std::vector<Segment> all = segments_of(heads.query, d);
  for (std::int64_t begin : {c.heads * d, (c.heads + c.kv_heads) * d})
    for (const Segment& s : kv_segments(heads, d, begin)) all.push_back(s);
  return all;
}

void expect_cuttable(const GptConfig& c, int ranks) {
  const auto expect = [&](std::int64_t n, const char* what) {
    if (n >= ranks) return;
    throw InputError(
        fmt::format("--tp {} cannot cut {} {}: every rank needs one at least; use --tp {} or less", ranks, n, what, n));
  };
  expect(c.heads, "heads");
  if (!c.has_experts()) expect(c.ffn, "columns of the MLP");
  expect(c.vocab, "entries of the vocabulary");
}

}  // namespace ref5d::tensor_parallel
