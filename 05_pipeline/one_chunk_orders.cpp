// GPipe and 1F1B: one stage on each rank, whole backwards.
#include <algorithm>

#include "05_pipeline/orders.h"

namespace ref5d::pipeline {

namespace {

// All forwards, then all backwards: a rank keeps every micro-batch. (GPipe, Huang et al. 2019, section 2.3.)
CellRow gpipe_row(int rank, int micro_batches) {
  RowWriter row({{rank, 0}});
  for (int i = 0; i < micro_batches; ++i) row.forward(0);
  for (int i = 0; i < micro_batches; ++i) row.backward(0);
  return row.take();
}

// Each backward as soon as it can be: the same bubble, but a rank keeps no more micro-batches than there are ranks from it to
// the last. (PipeDream-Flush, Narayanan et al. 2021, section 2.2.)
CellRow one_f_one_b_row(int ranks, int rank, int micro_batches) {
  RowWriter row({{rank, 0}});
  // As many as the ranks behind can work on before the first gradient comes back; fewer where there are not so many.
  const int warm_up = std::min(micro_batches, ranks - 1 - rank);
  for (int i = 0; i < warm_up; ++i) row.forward(0);
  for (int i = warm_up; i < micro_batches; ++i) {
    row.forward(0);
    row.backward(0);
  }
  for (int i = 0; i < warm_up; ++i) row.backward(0);
  return row.take();
}

}  // namespace

std::vector<CellRow> gpipe_rows(int ranks, int micro_batches) {
  std::vector<CellRow> rows;
  for (int r = 0; r < ranks; ++r) rows.push_back(gpipe_row(r, micro_batches));
  return rows;
}

std::vector<CellRow> one_f_one_b_rows(int ranks, int micro_batches) {
  std::vector<CellRow> rows;
  for (int r = 0; r < ranks; ++r) rows.push_back(one_f_one_b_row(ranks, r, micro_batches));
  return rows;
}

}  // namespace ref5d::pipeline
