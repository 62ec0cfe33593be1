// Zero Bubble (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"): the backward in halves. Only I is waited for, so that W
// fills what would be a bubble.
#include <algorithm>

#include "05_pipeline/orders.h"

namespace ref5d::pipeline {

namespace {

// 1F1B with the backward in halves, section 2.3: `warm_up` forwards, then forward and I in turn; W waits until more than
// `delay` are due, so that the ranks that have their last I early keep some W for the end, when there is nothing else to do.
CellRow halved_row(int rank, int micro_batches, int warm_up, int delay) {
  RowWriter row({{rank, 0}});
  const int first = std::min(warm_up, micro_batches);
  for (int i = 0; i < first; ++i) row.forward(0);
  for (int i = 0; i < micro_batches; ++i) {
    if (first + i < micro_batches) row.forward(0);
    row.input(0);
    if (row.weights_due() > delay) row.weight();
  }
  while (row.weights_due() > 0) row.weight();
  return row.take();
}

// Two stages on each rank, in a V: down the ranks and back up, so that the first rank has the loss and the last backward too.
// (Section 6 of the paper's later version; at equal times nothing is idle, and no rank keeps more than 1F1B's first.) Lane 0 is
// the way down, lane 1 the way up.
CellRow zb_v_row(int ranks, int rank, int micro_batches) {
  RowWriter row({{rank, 0}, {2 * ranks - 1 - rank, 0}});
  const int behind = ranks - rank;  // ranks from this one to the turn, itself included
  // Warm-up: until the first micro-batch is back from the turn, only the way down ...
  for (int i = 0; i < 2 * behind - 1; ++i) row.forward(0);
  // ... until its gradient is back from the first rank, where the loss is, both ways ...
  for (int i = 0; i < rank; ++i) {
    row.forward(1);
    row.forward(0);
  }
  // ... and until a gradient is back from the turn, backwards of the way up only.
  for (int i = 0; i < behind; ++i) {
    row.forward(1);
    row.input(1);
    row.weight();
  }
  // Steady: forward, I and W, down and up in turn.
  const int down_done = 2 * behind - 1 + rank;
  for (int i = 0; i < micro_batches - behind - rank; ++i) {
    if (down_done + i < micro_batches) row.forward(0);
    row.input(0);
    row.weight();
    row.forward(1);
    row.input(1);
    row.weight();
  }
  // Cool-down: the I that other ranks wait for first, and every W that was put off at the end.
  for (int i = 0; i < rank; ++i) {
    row.input(0);
    row.input(1);
  }
  for (int i = 0; i < behind; ++i) {
    row.input(0);
    row.weight();
  }
  while (row.weights_due() > 0) row.weight();
  return row.take();
}

// Warm-up and cool-down are for 2P micro-batches at least. Where there are fewer, those from `end` on are left out again: what
// is left keeps its order, so nothing that worked with them waits in vain without.
void leave_out_from(int end, CellRow& row) {
  std::erase_if(row, [end](const Cell& cell) { return cell.operation.micro_batch >= end; });
}

}  // namespace

std::vector<CellRow> zb_h1_rows(int ranks, int micro_batches) {
  std::vector<CellRow> rows;
  for (int r = 0; r < ranks; ++r) rows.push_back(halved_row(r, micro_batches, ranks - 1 - r, r));
  return rows;
}

// Twice the warm-up, and twice the memory: the first backward no longer waits for the last rank.
std::vector<CellRow> zb_h2_rows(int ranks, int micro_batches) {
  std::vector<CellRow> rows;
  for (int r = 0; r < ranks; ++r) rows.push_back(halved_row(r, micro_batches, 2 * (ranks - 1 - r), 2 * r));
  return rows;
}

std::vector<CellRow> zb_v_rows(int ranks, int micro_batches) {
  std::vector<CellRow> rows;
  for (int r = 0; r < ranks; ++r) {
    rows.push_back(zb_v_row(ranks, r, micro_batches));
    leave_out_from(micro_batches, rows.back());
  }
  return rows;
}

}  // namespace ref5d::pipeline
