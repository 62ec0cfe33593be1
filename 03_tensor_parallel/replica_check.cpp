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
      copies_of_experts_(data_parallel::holders_of_the_same(mesh, strategy, shard_size, true)),
      shared_(shared_parameters(model, mesh["tp"].size())) {}

bool ReplicaCheck::agree(const Group& copies, Trainer& trainer, bool experts) {
  std::vector<Tensor> weights;
  for (const Parameter* p : trainer.gpt().parameters())
    if (p->expert == experts) weights.push_back(p->weight);
  return copies.size() == 1 || weights.empty() || equal_on_all(copies, weights, trainer.stream());
}

bool ReplicaCheck::operator()(Trainer& trainer) const {
  std::vector<const Parameter*> shared;
  for (const Parameter* p : trainer.gpt().parameters())
    if (shared_.contains(p->name)) shared.push_back(p);
  for (const Parameter* p : trainer.gpt().buffers()) shared.push_back(p);  // whole wherever their layer is
  const bool ordinary = agree(copies_, trainer, false), experts = agree(copies_of_experts_, trainer, true);
  return unequal_elements(everyone_, shared, trainer.stream()) == 0 && ordinary && experts;
}

}  // namespace ref5d::tensor_parallel
