// How the sizes of a model are cut over the ranks of the tensor-parallel axis. Plain arithmetic: nothing here communicates.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/config.h"
#include "common/model/placement.h"

namespace ref5d::tensor_parallel {

struct Range {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

// A rank's share of n: contiguous, and of sizes that differ by one at most, the larger ones first.
[[nodiscard]] Range share_of(std::int64_t n, int ranks, int rank);

// The heads of a rank. It has its share of the query heads and the kv heads that these need, so two ranks may both hold a kv
// head whose group of query heads they share:
//
//   6 query heads    0 1 | 2 3 | 4 5        over three ranks
//   2 kv heads        0    0 1    1         rank 1 needs both
struct Heads {
  Range query, kv;
  // Query heads of the first kv head's group that are on an earlier rank.
  std::int64_t offset = 0;
  // For each kv head of this rank the ranks that hold it.
  std::vector<Range> holders;
};
[[nodiscard]] Heads heads_of(const GptConfig& config, int ranks, int rank);
// The same of fewer than a model's heads, whose first kv head's group begins with `offset` query heads that are not among them.
[[nodiscard]] Heads heads_of(std::int64_t heads, std::int64_t group, std::int64_t offset, int ranks, int rank);

// The range as one segment of a dim in which each counted thing is `width` elements wide.
[[nodiscard]] std::vector<Segment> segments_of(const Range& range, std::int64_t width = 1);
// The kv heads as segments of a dim that has `width` elements for each, the first head's at `begin`, and how many ranks hold
// each; neighbours that as many ranks hold are one segment.
[[nodiscard]] std::vector<Segment> kv_segments(const Heads& heads, std::int64_t width, std::int64_t begin = 0);

// The heads of a packed [q | k | v]: three stretches of its dim, and not one (pitfall P28).
[[nodiscard]] std::vector<Segment> packed_segments(const GptConfig& config, const Heads& heads);

// InputError if some rank would have nothing of what is cut: query heads, a dense MLP's columns, entries of the vocabulary.
void expect_cuttable(const GptConfig& config, int ranks);

}  // namespace ref5d::tensor_parallel
