#include "03_tensor_parallel/shared_gradients.h"

#include "common/comm/world.h"

namespace ref5d::tensor_parallel {

void sum_gradient_over_holders(Parameter& p, const std::vector<SharedPart>& parts, std::shared_ptr<Axis> axis) {
  for (const SharedPart& s : parts) (void)axis->communicator(s.holders);  // made now, in one order on all ranks
  p.on_final.emplace_back([parts, axis = std::move(axis)](Parameter& q, Stream& stream) {
    const TrafficLedger::Phase phase(world().traffic(), "shared gradients");
    order(stream, axis->stream());
    const Tensor& gradient = q.final_gradient();
    for (const SharedPart& s : parts) axis->communicator(s.holders).all_reduce(axis->stream(), gradient.rows(s.begin, s.end));
    return &axis->stream();
  });
}

namespace {

// The kv heads that other ranks hold too. (Those of a packed weight never are: GPT-2 has a kv head for every query head.)
void sum_kv_heads(const AttentionLayer& attention, const Heads& heads, const std::shared_ptr<Axis>& axis) {
  const std::int64_t head_dim = attention.heads.head_dim;
  std::vector<SharedPart> parts;
  for (std::size_t i = 0; i < heads.holders.size(); ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * head_dim;
    if (heads.holders[i].size() > 1) parts.push_back({begin, begin + head_dim, heads.holders[i]});
  }
  if (parts.empty()) return;
  for (const Linear* linear : {attention.k.get(), attention.v.get()}) {
    sum_gradient_over_holders(*linear->weight, parts, axis);
    if (linear->bias) sum_gradient_over_holders(*linear->bias, parts, axis);
  }
}

}  // namespace

void sum_shared_gradients(Gpt& gpt, const std::shared_ptr<Axis>& axis) {
  const Heads heads = heads_of(gpt.config(), axis->size(), axis->rank());
  for (const auto& block : gpt.blocks) {
    const AttentionLayer& attention = *block->attention;
    if (!axis->faults().kv_gradients_unsummed) sum_kv_heads(attention, heads, axis);
    if (!attention.q_norm || axis->faults().qk_norm_unsummed) continue;
    for (const Norm* norm : {attention.q_norm.get(), attention.k_norm.get()})
      sum_gradient_over_holders(*norm->weight, {{0, attention.heads.head_dim, {0, axis->size()}}}, axis);
  }
}

}  // namespace ref5d::tensor_parallel
