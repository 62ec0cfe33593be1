#include "02_ddp_zero/replicas.h"

namespace ref5d::data_parallel {

std::string gradient_axes(const Mesh& mesh) {
  return std::string(mesh.mirrored() ? "mirror*" : "") + (mesh.size("cp") > 1 ? "dp*cp" : "dp");
}

bool is_data_parallel(const std::string& axis) {
  const std::string whole = axis.substr(0, axis.find('/'));
  return whole == "dp" || whole == "dp*cp" || whole.starts_with("mirror*");
}

Group holders_of_the_same(Mesh& mesh, const StrategyOptions& strategy, int shard_size) {
  if (strategy.kind == "hsdp") return mesh.split(gradient_axes(mesh), shard_size).second->group();
  if (strategy.kind == "zero3") return {{world().rank()}, 0, 0};
  return mesh[gradient_axes(mesh)].group();
}

}  // namespace ref5d::data_parallel
