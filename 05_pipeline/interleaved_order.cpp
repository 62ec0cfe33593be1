// Interleaved 1F1B (Narayanan et al. 2021, section 2.2): each rank has several chunks of the model, so that a micro-batch comes
// by more often and the pipeline fills in less time.
#include <algorithm>

#include "05_pipeline/orders.h"

namespace ref5d::pipeline {

namespace {

// How many micro-batches pass a chunk before the next chunk has them. With as many as ranks, a rank is ready for its next chunk
// just when the first of them has been through the other ranks; with fewer it would wait, and more are kept for longer.
std::vector<int> group_sizes(int ranks, int micro_batches, int group) {
  std::vector<int> sizes;
  if (group == 0) {
    const int groups = std::max(1, micro_batches / ranks);
    for (int g = 0; g < groups; ++g) sizes.push_back(micro_batches / groups + (g < micro_batches % groups ? 1 : 0));
  } else {
    for (int begin = 0; begin < micro_batches; begin += group) sizes.push_back(std::min(group, micro_batches - begin));
  }
  return sizes;
}

// Group by group, chunk by chunk, micro-batch by micro-batch: the chunk of each forward. A backward's is the mirrored one.
std::vector<int> chunk_order(const std::vector<int>& groups, int chunks) {
  std::vector<int> order;
  for (const int size : groups) {
    for (int c = 0; c < chunks; ++c) order.insert(order.end(), static_cast<std::size_t>(size), c);
  }
  return order;
}

// Forwards before the first pair of a forward and a backward. The last rank must have had the first group in all chunks but the
// last; each rank before it two more than its follower, since a backward takes as long as a forward to come a rank further.
//
// How much more the first rank may have: its backward number k of a later chunk is what the last rank's backward number k + g
// waits for (g: the group's size), and comes after its forward number k + warm-up; that one waits for the last rank's number
// k + warm-up - g, and the last rank must not have that after its backward k + g. So it is at most the sizes of two groups,
// where there are two. If these are small, the later ranks start with more forwards instead: worse, but nobody waits in vain.
int warm_up_of(int rank, int ranks, int chunks, std::vector<int> groups) {
  if (chunks == 1) return ranks - 1 - rank;  // 1F1B
  const int first = 2 * (ranks - 1) + (chunks - 1) * groups.front();
  if (groups.size() == 1) return first - 2 * rank;
  std::sort(groups.begin(), groups.end());
  return first - std::min(2 * rank, groups[0] + groups[1]);
}

CellRow interleaved_row(int rank, int ranks, int chunks, const std::vector<int>& groups) {
  std::vector<Lane> lanes;
  for (int c = 0; c < chunks; ++c) lanes.push_back({c * ranks + rank, 0});
  RowWriter row(lanes);
  const std::vector<int> order = chunk_order(groups, chunks);
  // Fewer where there are not so many.
  const auto warm_up = std::min(order.size(), static_cast<std::size_t>(warm_up_of(rank, ranks, chunks, groups)));
  const auto backward = [&](std::size_t i) { row.backward(chunks - 1 - order[i]); };

  for (std::size_t i = 0; i < warm_up; ++i) row.forward(order[i]);
  for (std::size_t i = warm_up; i < order.size(); ++i) {
    row.forward(order[i]);
    backward(i - warm_up);
  }
  for (std::size_t i = order.size() - warm_up; i < order.size(); ++i) backward(i);
  return row.take();
}

}  // namespace

std::vector<CellRow> interleaved_rows(int ranks, int micro_batches, int chunks, int group) {
  const std::vector<int> groups = group_sizes(ranks, micro_batches, group);
  std::vector<CellRow> rows;
  for (int r = 0; r < ranks; ++r) rows.push_back(interleaved_row(r, ranks, chunks, groups));
  return rows;
}

}  // namespace ref5d::pipeline
