// What sharing out experts costs, beside what the ledgers counted.
#pragma once

#include <cstdint>

#include "06_expert_parallel/lesson.h"
#include "06_expert_parallel/routed_rows.h"
#include "06_expert_parallel/run.h"
#include "common/app/options.h"
#include "common/verify/report.h"

namespace ref5d::expert_parallel {

// The sizes that costs follow from.
struct Layout {
  Options options;  // with all micro-batches of a step
  GptConfig model;
  ExpertParallelOptions expert;
  TokenLayout tokens;
  int pp = 1, edp = 1, cp = 1;
  bool sp = false;
};
[[nodiscard]] Layout layout_of(const LayoutPlan& plan, const Lesson& lesson, Mesh& mesh);

// What was counted on one rank.
struct RankCounts {
  std::int64_t expert_flops = 0;  // of the first step
  std::int64_t choices = 0;       // of the tokens that were here, in all steps,
  std::int64_t sent = 0;          // and the rows that were sent to experts
};

// Bytes that all ranks send along ep, for rows that were counted so.
struct RoutedBytes {
  std::int64_t dispatch = 0, combine = 0, combine_backward = 0, dispatch_backward = 0, counts = 0, choices = 0;
  std::int64_t recomputation = 0;
};
[[nodiscard]] RoutedBytes routed_bytes(const RoutedRows& rows, const Layout& layout);

// Adds the claims that follow from the choices of all tokens to the report, which has the traffic. counts: of every rank of the
// mesh; routes: of all steps.
void claim_routing(Report& report, const Layout& layout, const Routes& routes, const std::vector<RankCounts>& counts);

}  // namespace ref5d::expert_parallel
