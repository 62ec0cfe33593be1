// The rows of each published schedule. Sizes are those of ScheduleOptions, which make_schedule has checked.
#pragma once

#include <vector>

#include "05_pipeline/row_writer.h"

namespace ref5d::pipeline {

// one_chunk_orders.cpp
[[nodiscard]] std::vector<CellRow> gpipe_rows(int ranks, int micro_batches);
[[nodiscard]] std::vector<CellRow> one_f_one_b_rows(int ranks, int micro_batches);
// interleaved_order.cpp. group: 0 for even groups of at least `ranks`.
[[nodiscard]] std::vector<CellRow> interleaved_rows(int ranks, int micro_batches, int chunks, int group);
// zero_bubble_orders.cpp
[[nodiscard]] std::vector<CellRow> zb_h1_rows(int ranks, int micro_batches);
[[nodiscard]] std::vector<CellRow> zb_h2_rows(int ranks, int micro_batches);
[[nodiscard]] std::vector<CellRow> zb_v_rows(int ranks, int micro_batches);
// dualpipe_orders.cpp
[[nodiscard]] std::vector<CellRow> dualpipe_rows(int ranks, int micro_batches);
[[nodiscard]] std::vector<CellRow> dualpipev_rows(int ranks, int micro_batches);

}  // namespace ref5d::pipeline
