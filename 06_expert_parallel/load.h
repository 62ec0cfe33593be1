// How tokens were shared out over experts, for the report.
#pragma once

#include "common/comm/mesh.h"
#include "common/train/run_record.h"
#include "common/verify/report.h"

namespace ref5d::expert_parallel {

// The load of every layer in some of the record's steps, of all ranks together: on rank 0, nothing elsewhere. counted_along_tp:
// where tp cuts every expert, its ranks have counted the same tokens. All ranks call it.
[[nodiscard]] std::vector<ExpertLoad> gather_load(const RunRecord& record, const GptConfig& model, bool counted_along_tp,
                                                  Mesh& mesh);

}  // namespace ref5d::expert_parallel
