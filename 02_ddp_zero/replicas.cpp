#include "02_ddp_zero/replicas.h"

#include <numeric>

namespace ref5d::data_parallel {

namespace {

std::string with_other_tokens(const Mesh& mesh, const std::string& replicas) {
  return (mesh.mirrored() ? "mirror*" : "") + replicas + (mesh.size("cp") > 1 ? "*cp" : "");
}

}  // namespace

std::string gradient_axes(const Mesh& mesh) { return with_other_tokens(mesh, "dp"); }

std::string expert_axes(const Mesh& mesh) { return with_other_tokens(mesh, mesh.size("ep") > 1 ? "edp" : "dp"); }

int expert_shard_size(const Mesh& mesh, int shard_size) {
  return std::gcd(shard_size, static_cast<int>(mesh.size(expert_axes(mesh))));
}

bool is_data_parallel(const std::string& axis) {
  const std::string whole = axis.substr(0, axis.find('/'));
  return whole == "dp" || whole == "edp" || whole == "dp*cp" || whole == "edp*cp" || whole.starts_with("mirror*");
}

StateRanks state_ranks(Mesh& mesh, const StrategyOptions& strategy, const std::string& axes, int shard_size) {
  if (strategy.kind != "hsdp") return {mesh[axes]};
  const auto [shard, replicate] = mesh.split(axes, shard_size);
  return {*shard, replicate};
}

Group holders_of_the_same(Mesh& mesh, const StrategyOptions& strategy, int shard_size, bool experts) {
  if (strategy.kind == "zero3") return {{world().rank()}, 0, 0};
  const StateRanks ranks = experts ? state_ranks(mesh, strategy, expert_axes(mesh), expert_shard_size(mesh, shard_size))
                                   : state_ranks(mesh, strategy, gradient_axes(mesh), shard_size);
  return (ranks.replicate == nullptr ? ranks.shard : *ranks.replicate).group();
}

}  // namespace ref5d::data_parallel
