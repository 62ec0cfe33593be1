// DualPipe and DualPipeV (DeepSeek-V3 report, section 3.2.1, and the DualPipe repository): micro-batches enter a rank from two
// sides, so that in the main part it always has a forward of one side and a backward of the other. They share no data, and one
// computes while the other communicates: F&B.
#include "05_pipeline/orders.h"

namespace ref5d::pipeline {

namespace {

// Lane 0 is the side that is nearer to its first stage, lane 1 the other. half: the ranks from the one end to where the sides
// meet; h: this rank's place among them, from 0. each: micro-batches of one side, at least 2 half.
CellRow two_sided_row(const std::vector<Lane>& lanes, int half, int h, int each) {
  RowWriter row(lanes);
  const int further = half - h - 1;  // ranks between this one and the middle
  // Warm-up: the near side alone, until the far side's first micro-batch has come this far ...
  for (int i = 0; i < 2 * further; ++i) row.forward(0);
  // ... both in turn ...
  for (int i = 0; i < h + 1; ++i) {
    row.forward(0);
    row.forward(1);
  }
  // ... and the far side's first backwards. They are halved: the next rank waits for I.
  for (int i = 0; i < further; ++i) {
    row.input(1);
    row.weight();
    row.forward(1);
  }
  // Main part. At the very first backward in the middle, forward and backward one after the other: the neighbours wait for the
  // forward, and there is nothing yet that would have to be hidden.
  for (int i = 0; i < each - 2 * half + h + 1; ++i) {
    if (i == 0 && further == 0) {
      row.forward(0);
      row.backward(1);
    } else {
      row.forward_beside_backward(0, 1);
    }
    row.forward_beside_backward(1, 0);
  }
  // Cool-down: the near side has no forward left ...
  for (int i = 0; i < further; ++i) {
    row.backward(1);
    row.forward_beside_backward(1, 0);
  }
  // ... nor has the far side. From the middle of these backwards on only I, since nobody waits for W.
  for (int i = 0; i < 2 * (h + 1); ++i) {
    const int lane = i % 2 == 0 ? 1 : 0;
    if (i < h + 1) {
      row.backward(lane);
    } else {
      row.input(lane);
    }
  }
  // ... and the near side's last gradients come one by one, with a W between them.
  for (int i = 0; i < further; ++i) {
    row.weight();
    row.input(0);
  }
  while (row.weights_due() > 0) row.weight();
  return row.take();
}

}  // namespace

// The first half of the micro-batches goes from rank 0 to the last, the second from the last to rank 0, each side through its
// own copy of the stages: a rank has its own stage of the one and the mirrored rank's of the other.
std::vector<CellRow> dualpipe_rows(int ranks, int micro_batches) {
  const int half = ranks / 2, each = micro_batches / 2;
  std::vector<CellRow> rows;
  for (int r = 0; r < ranks; ++r) {
    const Lane down{r, 0}, up{ranks - 1 - r, each};
    const bool near_start = r < half;
    const std::vector<Lane> lanes = near_start ? std::vector<Lane>{down, up} : std::vector<Lane>{up, down};
    rows.push_back(two_sided_row(lanes, half, near_start ? r : ranks - 1 - r, each));
  }
  return rows;
}

// The one half of DualPipe's ranks, with the other half's work: two stages in a V, each once, and every micro-batch goes down
// the ranks and back up. (Called "cut-in-half" where it was first described, Qi et al. 2025.)
std::vector<CellRow> dualpipev_rows(int ranks, int micro_batches) {
  std::vector<CellRow> rows;
  for (int r = 0; r < ranks; ++r) {
    rows.push_back(two_sided_row({{r, 0}, {2 * ranks - 1 - r, 0}}, ranks, r, micro_batches));
  }
  return rows;
}

}  // namespace ref5d::pipeline
