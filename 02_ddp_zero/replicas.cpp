#include "02_ddp_zero/replicas.h"

namespace ref5d::data_parallel {

Group holders_of_the_same(Mesh& mesh, const StrategyOptions& strategy, int shard_size) {
  if (strategy.kind == "hsdp") return mesh.split("dp", shard_size).second->group();
  if (strategy.kind == "zero3") return {{world().rank()}, 0, 0};
  return mesh["dp"].group();
}

}  // namespace ref5d::data_parallel
