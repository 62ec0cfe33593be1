#include "04_seq_context_parallel/sequence_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "03_tensor_parallel/shared_gradients.h"
#include "04_seq_context_parallel/token_shares.h"
#include "common/device/error.h"

namespace ref5d::sequence_parallel {

using tensor_parallel::Axis;
using tensor_parallel::Range;
using tensor_parallel::share_of;

std::vector<std::string> keep_names() { return {"shard", "gathered"}; }

namespace {

// Sequence parallelism's part of the model's seam around cut layers: gather on the way in, reduce-scatter on the way out.
class SequenceParallelRegion : public Region {
 public:
  SequenceParallelRegion(std::shared_ptr<Axis> axis, bool keep_gathered, const char* forward_phase, const char* backward_phase)
      : axis_(std::move(axis)), keep_gathered_(keep_gathered), forward_phase_(forward_phase), backward_phase_(backward_phase) {}

  [[nodiscard]] Tensor enter(Context& ctx, const Tensor& x) override { return gather(ctx, x, phase(ctx)); }
  // Weight gradients are computed while the input's is on its way.
  [[nodiscard]] PendingTensor begin_enter_backward(Context& ctx, const Tensor& dx) override {
    return at_once_unless_overlapped(ctx, begin_reduce_scatter(*axis_, ctx, dx, backward_phase_));
  }
  [[nodiscard]] Tensor leave(Context& ctx, const Tensor& y) override {
    return begin_reduce_scatter(*axis_, ctx, y, phase(ctx))(ctx);
  }
  [[nodiscard]] Tensor leave_backward(Context& ctx, const Tensor& dy) override { return gather(ctx, dy, backward_phase_); }

  // A forward that runs again is followed by its backward at once, so there is nothing to save by forgetting the gathered
  // input.
  [[nodiscard]] Tensor keep(const Context& ctx, const Tensor& input, const Tensor& entered) override {
    return keep_gathered_ || ctx.recomputing ? entered : input;
  }
  // The input's gradient is computed while the input is on its way.
  [[nodiscard]] PendingTensor begin_restore(Context& ctx, const Tensor& kept) override {
    const std::int64_t rows = ctx.batch->token_count();
    if (kept.dim(0) == rows) return Region::begin_restore(ctx, kept);
    return at_once_unless_overlapped(ctx, begin_all_gather(*axis_, ctx, kept, rows, backward_phase_));
  }

 private:
  [[nodiscard]] const char* phase(const Context& ctx) const { return ctx.recomputing ? "recomputation" : forward_phase_; }
  [[nodiscard]] Tensor gather(Context& ctx, const Tensor& own, const char* under) {
    return begin_all_gather(*axis_, ctx, own, ctx.batch->token_count(), under)(ctx);
  }
  [[nodiscard]] PendingTensor at_once_unless_overlapped(Context& ctx, PendingTensor pending) const {
    if (axis_->options().overlap) return pending;
    const Tensor there = pending(ctx);
    return [there](Context&) { return there; };
  }

  std::shared_ptr<Axis> axis_;
  bool keep_gathered_;
  const char *forward_phase_, *backward_phase_;
};

// Null where it is a mixture of experts, which lesson 06 cuts.
DenseMlp* dense_of(const Block& block) { return dynamic_cast<DenseMlp*>(block.mlp.get()); }

// Everything that acts on the rows of the residual stream, each of which is on one rank: its gradient is a sum over tokens.
std::vector<Parameter*> parameters_on_rows(const Gpt& gpt) {
  std::vector<Parameter*> all;
  const auto add = [&](const std::shared_ptr<Parameter>& p) {
    if (p) all.push_back(p.get());
  };
  const auto add_norm = [&](const Norm& norm) {
    add(norm.weight);
    add(norm.bias);
  };
  add(gpt.embedding->positions);
  for (const auto& block : gpt.blocks) {
    add_norm(*block->attention_norm);
    add_norm(*block->mlp_norm);
    add(block->attention->out->bias);
    if (const DenseMlp* mlp = dense_of(*block)) add(mlp->down->bias);
  }
  add_norm(*gpt.head->norm);
  return all;
}

}  // namespace

std::unique_ptr<Region> make_region(const std::shared_ptr<Axis>& axis, const SequenceParallelOptions& options,
                                    const char* forward_phase, const char* backward_phase) {
  return std::make_unique<SequenceParallelRegion>(axis, options.keep == "gathered", forward_phase, backward_phase);
}

void apply(Gpt& gpt, const std::shared_ptr<Axis>& axis, const SequenceParallelOptions& options) {
  const auto region = [&](const char* forward, const char* backward) { return make_region(axis, options, forward, backward); };
  gpt.embedding->region = region("embedding", "embedding");
  gpt.head->region = region("head", "head");
  for (const auto& block : gpt.blocks) {
    block->attention->region = region("forward", "backward");
    if (DenseMlp* mlp = dense_of(*block)) mlp->region = region("forward", "backward");
  }
  if (options.faults.norms_unsummed) return;
  for (Parameter* p : parameters_on_rows(gpt))
    tensor_parallel::sum_gradient_over_holders(*p, {{0, p->local_shape()[0], {0, axis->size()}}}, axis);
}

namespace {

// A micro-batch's rows of the residual stream that are here.
void scatter_residual(const Axis& axis, const Faults& faults, MicroBatch& b) {
  const Range here = share_of(b.token_count(), axis.size(), axis.rank());
  const ResidualRows all = b.residual;
  b.residual = all.part(here.begin, here.end);
  if (!faults.dropout_by_row) return;
  const Range first = share_of(b.token_count(), axis.size(), 0);
  b.residual.sample = all.sample.rows(first.begin, first.begin + here.size());
  b.residual.order = all.order.rows(first.begin, first.begin + here.size());
}

bool has_rows_of_residual(const std::string& name) {
  const std::string_view what = std::string_view(name).substr(name.rfind('/') + 1);
  if (name == "logits") return false;
  return what != "q" && what != "k" && what != "v" && what != "attn";
}

}  // namespace

void apply(TrainerOptions& settings, Mesh& mesh, const std::shared_ptr<Axis>& axis, const SequenceParallelOptions& options,
           std::int64_t tokens_per_sequence, std::int64_t fewest_tokens) {
  if (settings.loader.cut || settings.accumulate)
    throw std::logic_error("sequence_parallel::apply comes before context_parallel::apply and data_parallel::apply");
  const std::int64_t fewest = fewest_tokens * settings.micro_batch;
  if (fewest < axis->size())
    throw InputError(
        fmt::format("--sp cannot cut a micro-batch of {} token{} over {} ranks: every rank needs one at least; use a "
                    "longer --seq or a larger --micro-batch",
                    fewest, fewest == 1 ? "" : "s", axis->size()));
  settings.cut = [axis, options, before = settings.cut](Gpt& gpt) {
    if (before) before(gpt);
    apply(gpt, axis, options);
  };
  settings.loader.scatter_residual = [axis, faults = options.faults](MicroBatch& b) { scatter_residual(*axis, faults, b); };
  settings.activation_part = [axis, tokens_per_sequence, samples = settings.global_batch / mesh["dp"].size(),
                              micro_batch = settings.micro_batch,
                              before = settings.activation_part](const std::string& name, ActivationPart& part) {
    if (before) before(name, part);
    if (part.rows.empty() && has_rows_of_residual(name))
      part.rows = rows_of_shares(*axis, samples, micro_batch, tokens_per_sequence);
  };
}

}  // namespace ref5d::sequence_parallel
