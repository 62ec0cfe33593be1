// The choices of a run that is compared with nothing, for what is counted from them.
#pragma once

#include <functional>

#include "06_expert_parallel/run.h"
#include "common/model/route_log.h"

namespace ref5d::expert_parallel {

// Calls train, which makes and runs a trainer of plan.settings. Returns the choices of all tokens, on rank 0; nothing
// elsewhere.
[[nodiscard]] Routes keep_routes(LayoutPlan& plan, const Mesh& mesh, const std::function<void()>& train);

}  // namespace ref5d::expert_parallel
