#include "06_expert_parallel/kept_routes.h"

namespace ref5d::expert_parallel {

Routes keep_routes(LayoutPlan& plan, const Mesh& mesh, const std::function<void()>& train) {
  const GptConfig& model = plan.settings.model;
  Routes mine{model.seq, model.moe.top_k, {}}, all = mine;
  RouteLog keep(mine, RouteLog::Mode::kKeep);
  plan.settings.routes = &keep;
  train();
  plan.settings.routes = nullptr;
  for (const Bytes& bytes : gather_on_host(mesh.everyone(), mine.to_bytes())) (void)all.merge(Routes::from_bytes(bytes));
  return all;
}

}  // namespace ref5d::expert_parallel
