#include "03_tensor_parallel/replica_check.h"

#include "02_ddp_zero/replicas.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/train/replicas.h"

namespace ref5d::tensor_parallel {

namespace {

// The parameters of which some ranks of the axis hold the same elements. A rank's own placement does not say it of others.
std::set<std::string> shared_parameters(const GptConfig& c, int ranks) {
  std::set<std::string> names;
  for (int r = 0; r < ranks; ++r) {
    Gpt gpt(c);
    cut(gpt, ranks, r);
    for (const Parameter* p : gpt.parameters())
      for (const Segment& s : p->placement.segments)
        if (s.replicas > 1) names.insert(p->name);
  }
  return names;
}

}  // namespace

ReplicaCheck::ReplicaCheck(const GptConfig& model, Mesh& mesh, const data_parallel::StrategyOptions& strategy, int shard_size)
    : everyone_(mesh.everyone()),
      copies_(data_parallel::holders_of_the_same(mesh, strategy, shard_size)),
      shared_(shared_parameters(model, mesh["tp"].size())) {}

bool ReplicaCheck::operator()(Trainer& trainer) const {
  std::vector<Tensor> weights;
  std::vector<const Parameter*> shared;
  for (const Parameter* p : trainer.gpt().parameters()) {
    weights.push_back(p->weight);
    if (shared_.contains(p->name)) shared.push_back(p);
  }
  const bool copies_agree = copies_.size() == 1 || equal_on_all(copies_, weights, trainer.stream());
  return unequal_elements(everyone_, shared, trainer.stream()) == 0 && copies_agree;
}

}  // namespace ref5d::tensor_parallel
