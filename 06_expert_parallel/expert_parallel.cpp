#include "06_expert_parallel/expert_parallel.h"

#include <fmt/format.h>

#include <stdexcept>

#include "02_ddp_zero/replicas.h"
#include "03_tensor_parallel/parallel_linear.h"
#include "03_tensor_parallel/region.h"
#include "03_tensor_parallel/shared_gradients.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "04_seq_context_parallel/token_shares.h"
#include "06_expert_parallel/all_gather_dispatcher.h"
#include "06_expert_parallel/alltoall_dispatcher.h"
#include "06_expert_parallel/hierarchical_dispatcher.h"
#include "06_expert_parallel/replica_scope.h"
#include "06_expert_parallel/row_share_region.h"
#include "common/comm/world.h"
#include "common/device/error.h"

namespace ref5d::expert_parallel {

namespace {

MoeMlp& moe_of(const Block& block) { return dynamic_cast<MoeMlp&>(*block.mlp); }

void cut_experts(Experts& experts, bool expert_tp, int tp, int tp_rank) {
  for (Experts::Expert& e : experts.all) {
    if (expert_tp) {
      tensor_parallel::cut_mlp(e.gate, e.up, e.down, tp, tp_rank);
    } else {
      for (const auto* linear : {&e.gate, &e.up, &e.down}) tensor_parallel::replicate(*(*linear)->weight, tp);
    }
  }
}

// Each rank along tp has its own rows' part of the gradient, or (--expert-tp) the part of its own columns.
void sum_over_tp(Parameter& p, const std::shared_ptr<tensor_parallel::Axis>& tensor) {
  tensor_parallel::sum_gradient_over_holders(p, {{0, p.local_shape()[0], {0, tensor->size()}}}, tensor);
}

std::unique_ptr<TokenDispatcher> make_dispatcher(const std::shared_ptr<ExpertAxis>& axis, const MoeConfig& moe) {
  if (axis->size() == 1) return std::make_unique<LocalDispatcher>(moe);
  if (axis->options().dispatcher == "hierarchical") return std::make_unique<HierarchicalDispatcher>(axis, moe);
  if (axis->options().dispatcher == "allgather") return std::make_unique<AllGatherDispatcher>(axis, moe);
  return std::make_unique<AllToAllDispatcher>(axis, moe);
}

RouterRows router_rows(const ExpertParallelOptions& options, const TensorAxis& tensor) {
  if (!tensor.axis || (!options.expert_tp && tensor.sequence)) return RouterRows::kResidual;
  return options.expert_tp ? RouterRows::kAll : RouterRows::kShareOfAll;
}

ReplicaScope::Setup make_scope(Mesh& mesh, const ExpertParallelOptions& options, const TensorAxis& tensor) {
  ReplicaScope::Setup scope{router_rows(options, tensor),
                            static_cast<int>(mesh.size("tp")),
                            static_cast<int>(mesh.coordinate("tp")),
                            mesh.coordinate("cp") == 0,
                            nullptr,
                            nullptr,
                            options.faults};
  const std::string axes = tensor.axis && !options.expert_tp ? "cp*tp" : "cp";
  // One of its own: attention and the cut layers use those of the axes on streams of theirs.
  const int size = static_cast<int>(mesh.size(axes));
  if (size == 1) return scope;
  scope.others = &mesh.subgroup(axes, 0, size);
  (void)device().compute();
  scope.stream = std::make_shared<Stream>("router");
  return scope;
}

void expect_cuttable(const GptConfig& c, bool expert_tp, std::int64_t tp) {
  const auto expect = [&](std::int64_t columns, const char* what, const char* other) {
    if (columns < tp)
      throw InputError(fmt::format("--tp {} cannot cut {} of {} column{}: every rank needs one at least; use --tp {}{}{}", tp,
                                   what, columns, columns == 1 ? "" : "s", columns, columns == 1 ? "" : " or less", other));
  };
  if (expert_tp) expect(c.ffn, "experts", ", or leave --expert-tp out");
  if (c.moe.shared_experts > 0) expect(c.moe.shared_experts * c.ffn, "shared experts", "");
}

struct Seams {
  std::shared_ptr<ExpertAxis> axis;
  TensorAxis tensor;
  ReplicaScope::Setup scope;
  std::shared_ptr<Stream> shared_stream;  // of shared experts
};

// Around matrices that are cut along tp.
std::unique_ptr<Region> make_region(const TensorAxis& tensor, const char* forward_phase, const char* backward_phase) {
  if (tensor.sequence) return sequence_parallel::make_region(tensor.axis, *tensor.sequence, forward_phase, backward_phase);
  return std::make_unique<tensor_parallel::TensorParallelRegion>(tensor.axis, forward_phase, backward_phase);
}

void join(MoeMlp& moe, const MoeConfig& config, const Seams& seams) {
  const ExpertParallelOptions& options = seams.axis->options();
  const TensorAxis& tensor = seams.tensor;
  moe.dispatcher = make_dispatcher(seams.axis, config);
  moe.router.scope = std::make_unique<ReplicaScope>(seams.scope);
  if (moe.shared) moe.shared->stream = seams.shared_stream;
  moe.shared_meanwhile = options.overlap;
  if (!tensor.axis) return;
  if (!options.faults.router_unsummed) sum_over_tp(*moe.router.weight, tensor.axis);
  if (options.expert_tp) {
    moe.region = make_region(tensor, "experts forward", "experts backward");
    return;
  }
  for (const Experts::Expert& e : moe.experts.all)
    for (const auto* linear : {&e.gate, &e.up, &e.down})
      if ((*linear)->weight->uses > 0) sum_over_tp(*(*linear)->weight, tensor.axis);
  if (!tensor.sequence) moe.region = std::make_unique<RowShareRegion>(tensor.axis);
  moe.shared_inside = false;
  if (moe.shared) moe.shared->mlp.region = make_region(tensor, "forward", "backward");
}

bool is_of_router(const std::string& name) {
  return name.ends_with("/router_scores") || name.ends_with("/experts") || name.ends_with("/router_logits");
}

// For dumps: which rows of the batch a router has had along tp, before context parallelism says where in its sequences they
// are. Of experts that are cut, each rank has the part of the router's gradient that its own columns make.
void locate_router(TrainerOptions& settings, Mesh& mesh, const ExpertParallelOptions& options, const TensorAxis& tensor) {
  const std::int64_t samples = settings.global_batch / mesh["dp"].size();
  std::vector<Segment> rows;
  switch (router_rows(options, tensor)) {
    case RouterRows::kResidual: return;
    case RouterRows::kAll: rows = {{0, samples * tensor.tokens_per_sequence}}; break;
    case RouterRows::kShareOfAll:
      rows = sequence_parallel::rows_of_shares(*tensor.axis, samples, settings.micro_batch, tensor.tokens_per_sequence);
  }
  settings.activation_part = [rows, cut = options.expert_tp, before = settings.activation_part](const std::string& name,
                                                                                                ActivationPart& part) {
    const bool of_router = is_of_router(name);
    if (of_router) part.rows = rows;
    if (before) before(name, part);
    if (of_router) part.partial = cut && name.starts_with("sub_grad/");
  };
}

}  // namespace

void cut(Gpt& gpt, const Range& experts, bool distributed, bool expert_tp, int tp, int tp_rank) {
  for (const auto& block : gpt.blocks) {
    MoeMlp& moe = moe_of(*block);
    if (tp > 1) {
      cut_experts(moe.experts, expert_tp, tp, tp_rank);
      tensor_parallel::replicate(*moe.router.weight, tp);
      if (moe.shared) {
        DenseMlp& mlp = moe.shared->mlp;
        tensor_parallel::cut_mlp(mlp.gate, mlp.up, mlp.down, tp, tp_rank);
      }
    }
    if (distributed) moe.experts.keep(experts.begin, experts.end);
  }
}

std::shared_ptr<ExpertAxis> apply(TrainerOptions& settings, Mesh& mesh, const ExpertParallelOptions& options,
                                  const TensorAxis& tensor) {
  if (settings.shard || settings.accumulate)
    throw std::logic_error("expert_parallel::apply comes before data_parallel::apply, which sums experts over edp alone");
  if (!settings.model.has_experts()) throw std::logic_error("expert_parallel::apply is for a model with experts");
  expect_cuttable(settings.model, options.expert_tp, mesh.size("tp"));
  const auto axis = std::make_shared<ExpertAxis>(mesh, options, settings.model.moe.experts);
  Seams seams{axis, tensor, make_scope(mesh, options, tensor), nullptr};
  if (options.overlap && settings.model.moe.shared_experts > 0 && axis->size() > 1)
    seams.shared_stream = std::make_shared<Stream>("shared experts");
  settings.cut = [seams, &mesh, moe = settings.model.moe, before = settings.cut](Gpt& gpt) {
    if (before) before(gpt);
    const ExpertAxis& ep = *seams.axis;
    cut(gpt, ep.experts_of(ep.rank()), ep.size() > 1, ep.options().expert_tp, static_cast<int>(mesh.size("tp")),
        static_cast<int>(mesh.coordinate("tp")));
    for (const auto& block : gpt.blocks) join(moe_of(*block), moe, seams);
  };
  locate_router(settings, mesh, options, tensor);
  const bool other_rows_along_tp = tensor.axis && !options.expert_tp;
  if (options.faults.own_load) return axis;
  settings.sum_router_load = [&mesh, other_rows_along_tp](Stream& stream, const Tensor& load) {
    const TrafficLedger::Phase phase(world().traffic(), "router load");
    mesh[data_parallel::gradient_axes(mesh)].all_reduce(stream, load);
    if (other_rows_along_tp) mesh["tp"].all_reduce(stream, load);
  };
  return axis;
}

}  // namespace ref5d::expert_parallel
