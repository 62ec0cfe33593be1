#include "03_tensor_parallel/tensor_parallel.h"

#include <stdexcept>

#include "03_tensor_parallel/parallel_linear.h"
#include "03_tensor_parallel/region.h"
#include "03_tensor_parallel/shared_gradients.h"
#include "03_tensor_parallel/vocab_parallel.h"
#include "common/comm/world.h"
#include "common/kernels/elementwise.h"

namespace ref5d::tensor_parallel {

namespace {

void make_column_parallel(std::unique_ptr<Linear>& linear, const std::vector<Segment>& segments) {
  if (linear) linear = std::make_unique<ColumnParallelLinear>(*linear, segments);
}

void replicate_norm(const std::unique_ptr<Norm>& norm, int ranks) {
  if (!norm) return;
  replicate(*norm->weight, ranks);
  if (norm->bias) replicate(*norm->bias, ranks);
}

void cut_attention(AttentionLayer& a, const GptConfig& c, int ranks, int rank, const Faults& faults) {
  const Heads heads = heads_of(c, ranks, rank);
  const std::vector<Segment> query = segments_of(heads.query, c.head_dim());
  const std::vector<Segment> one_block = segments_of(share_of((c.heads + 2 * c.kv_heads) * c.head_dim(), ranks, rank));
  make_column_parallel(a.qkv, faults.packed_as_one_block ? one_block : packed_segments(c, heads));
  make_column_parallel(a.q, query);
  make_column_parallel(a.k, kv_segments(heads, c.head_dim()));
  make_column_parallel(a.v, kv_segments(heads, c.head_dim()));
  a.out = std::make_unique<RowParallelLinear>(*a.out, query, ranks, faults.bias_on_every_rank);
  a.heads.offset = heads.offset;
  replicate_norm(a.q_norm, ranks);
  replicate_norm(a.k_norm, ranks);
}

// Null where it is a mixture of experts, which lesson 06 cuts.
DenseMlp* dense(const Block& block) { return dynamic_cast<DenseMlp*>(block.mlp.get()); }

}  // namespace

void cut_mlp(std::unique_ptr<Linear>& gate, std::unique_ptr<Linear>& up, std::unique_ptr<Linear>& down, int ranks, int rank,
             const Faults& faults) {
  const std::vector<Segment> columns = segments_of(share_of(up->out(), ranks, rank));
  make_column_parallel(gate, columns);  // the same columns as up's: they are multiplied element by element
  make_column_parallel(up, columns);
  down = std::make_unique<RowParallelLinear>(*down, columns, ranks, faults.bias_on_every_rank);
}

void cut(Gpt& gpt, int ranks, int rank, const Faults& faults) {
  const GptConfig& c = gpt.config();
  expect_cuttable(c, ranks);
  const std::vector<Segment> entries = segments_of(share_of(c.vocab, ranks, rank));
  gpt.embedding->tokens->placement = {.dim = 0, .segments = entries};
  if (gpt.embedding->positions) replicate(*gpt.embedding->positions, ranks);
  for (const auto& block : gpt.blocks) {
    replicate_norm(block->attention_norm, ranks);
    replicate_norm(block->mlp_norm, ranks);
    cut_attention(*block->attention, c, ranks, rank, faults);
    if (DenseMlp* mlp = dense(*block)) cut_mlp(mlp->gate, mlp->up, mlp->down, ranks, rank, faults);
  }
  replicate_norm(gpt.head->norm, ranks);
  make_column_parallel(gpt.head->projection, entries);  // of a tied weight the same placement again
  if (!faults.norm_counts_replicas) return;
  for (Parameter* p : gpt.parameters())
    for (Segment& s : p->placement.segments) s.replicas = 1;
}

void apply(Gpt& gpt, const std::shared_ptr<Axis>& axis) {
  cut(gpt, axis->size(), axis->rank(), axis->faults());
  gpt.embedding = std::make_unique<VocabParallelEmbedding>(std::move(*gpt.embedding), axis);
  gpt.head = std::make_unique<VocabParallelHead>(std::move(*gpt.head), axis);
  gpt.embedding->region = std::make_unique<TensorParallelRegion>(axis, "embedding", "embedding");
  gpt.head->region = std::make_unique<TensorParallelRegion>(axis, "head", "head");
  const auto region = [&] { return std::make_unique<TensorParallelRegion>(axis, "forward", "backward"); };
  for (const auto& block : gpt.blocks) {
    block->attention->region = region();
    if (DenseMlp* mlp = dense(*block)) mlp->region = region();
  }
  sum_shared_gradients(gpt, axis);
}

namespace {

// Columns of the tensors that a dump shows: cut where heads or the vocabulary are.
void locate(const std::string& name, const GptConfig& c, const Axis& axis, ActivationPart& part) {
  const Heads heads = heads_of(c, axis.size(), axis.rank());
  const std::string_view what = std::string_view(name).substr(name.rfind('/') + 1);
  if (name == "logits") part.columns = segments_of(share_of(c.vocab, axis.size(), axis.rank()));
  if (!name.starts_with("sub")) return;
  if (what == "q" || what == "attn") part.columns = segments_of(heads.query, c.head_dim());
  if (what != "k" && what != "v") return;
  part.columns = segments_of(heads.kv, c.head_dim());
  part.partial = name.starts_with("sub_grad/");  // each rank has its own query heads' part of it
}

}  // namespace

std::shared_ptr<Axis> apply(TrainerOptions& settings, Mesh& mesh, const TensorParallelOptions& options) {
  if (settings.shard || settings.accumulate)
    throw std::logic_error(
        "tensor_parallel::apply comes before data_parallel::apply, whose reductions need whole sums over tp");
  const auto axis = std::make_shared<Axis>(mesh, options);
  settings.cut = [axis, before = settings.cut](Gpt& gpt) {
    if (before) before(gpt);
    apply(gpt, axis);
  };
  settings.optimizer.reduce_partials = [axis, before = settings.optimizer.reduce_partials](
                                           Stream& stream, const std::vector<OptimizerState>& states, const Tensor& partials) {
    if (before) before(stream, states, partials);
    if (axis->faults().norm_of_own_part) return;
    const TrafficLedger::Phase phase(world().traffic(), "norm");
    order(stream, axis->stream());
    axis->communicator().all_reduce(axis->stream(), partials);
    order(axis->stream(), stream);
  };
  if (options.faults.drift && axis->rank() + 1 == axis->size()) {
    settings.after_update = [before = settings.after_update](Gpt& gpt, Context& ctx) {
      if (before) before(gpt, ctx);
      const double factor = 1 + (ctx.dtype == Dtype::kBf16 ? 0x1p-7 : 0x1p-20);  // more than rounding
      for (const auto& block : gpt.blocks) scale(ctx.stream, block->mlp_norm->weight->weight, factor);
    };
  }
  settings.activation_part = [axis, model = settings.model, before = settings.activation_part](const std::string& name,
                                                                                               ActivationPart& part) {
    if (before) before(name, part);
    locate(name, model, *axis, part);
  };
  return axis;
}

}  // namespace ref5d::tensor_parallel
