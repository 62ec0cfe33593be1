// How tokens were shared out over experts, for the report.
#pragma once

#include "06_expert_parallel/routed_rows.h"
#include "common/comm/mesh.h"
#include "common/train/run_record.h"
#include "common/verify/report.h"

namespace ref5d::expert_parallel {

// The load of every layer in some of the record's steps, of all ranks together: on rank 0, nothing elsewhere. All ranks call
// it.
[[nodiscard]] std::vector<ExpertLoad> gather_load(const RunRecord& record, const TokenLayout& layout, Mesh& mesh);

}  // namespace ref5d::expert_parallel
