#include "common/model/experts.h"

#include <cmath>
#include <stdexcept>

#include "common/device/device.h"
#include "common/kernels/swiglu.h"

namespace ref5d {

Experts::Experts(const GptConfig& c, std::int64_t layer) : end_(c.moe.experts) {
  const bool mixtral = c.family == Family::kMixtral;
  const std::string block = "model.layers." + std::to_string(layer) + (mixtral ? ".block_sparse_moe" : ".mlp") + ".experts.";
  const double down_std = c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers));
  for (std::int64_t e = 0; e < c.moe.experts; ++e) {
    const std::string name = block + std::to_string(e) + ".";
    const auto linear = [&](const char* mixtrals, const char* deepseeks, std::int64_t in, std::int64_t out, double std) {
      return std::make_unique<Linear>(name + (mixtral ? mixtrals : deepseeks), in, out, false, false, std, FlopsKind::kExperts);
    };
    all.push_back({linear("w1", "gate_proj", c.hidden, c.ffn, c.init_std), linear("w3", "up_proj", c.hidden, c.ffn, c.init_std),
                   linear("w2", "down_proj", c.ffn, c.hidden, down_std)});
  }
}

std::vector<std::shared_ptr<Parameter>> Experts::parameters() const {
  std::vector<std::shared_ptr<Parameter>> parameters;
  for (const Expert& e : all)
    for (const auto* linear : {&e.gate, &e.up, &e.down}) append(parameters, *linear);
  return parameters;
}

void Experts::keep(std::int64_t begin, std::int64_t end) {
  begin_ = begin;
  end_ = end;
  for (std::int64_t e = 0; e < static_cast<std::int64_t>(all.size()); ++e) {
    const bool here = e >= begin && e < end;
    for (const auto* linear : {&all[static_cast<std::size_t>(e)].gate, &all[static_cast<std::size_t>(e)].up,
                               &all[static_cast<std::size_t>(e)].down}) {
      Parameter& p = *(*linear)->weight;
      p.expert = true;
      // Cut on every rank, be it the whole dim: all take part when it is gathered.
      if (p.placement.dim < 0) p.placement = {.dim = 0, .segments = {{0, p.global_shape[0]}}};
      if (here) continue;
      p.placement.segments.clear();
      p.uses = 0;
    }
  }
}

template <typename Operands>
std::vector<GemmOperands> Experts::products(Member member, const std::vector<std::int64_t>& counts,
                                            const Operands& operands) const {
  if (static_cast<std::int64_t>(counts.size()) != count()) throw std::logic_error("rows for another number of experts");
  std::vector<GemmOperands> of_experts;
  std::int64_t at = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const Linear& linear = *(all[static_cast<std::size_t>(begin_) + e].*member);
    of_experts.push_back(operands(linear, at, at + counts[e]));
    device().flops().add(linear.flops, gemm_flops(counts[e], linear.out(), linear.in()));
    at += counts[e];
  }
  return of_experts;
}

Tensor Experts::multiply(Context& ctx, Member member, const Tensor& x, const std::vector<std::int64_t>& counts) const {
  Tensor y = ctx.activation({x.dim(0), (all[static_cast<std::size_t>(begin_)].*member)->out()});
  gemm_grouped(ctx.stream, ctx.gemm, Transpose::kNo, Transpose::kYes, 1.0,
               products(member, counts, [&](const Linear& linear, std::int64_t begin, std::int64_t end) {
                 return GemmOperands{x.rows(begin, end), linear.weight->weight, y.rows(begin, end)};
               }));
  return y;
}

void Experts::multiply_backward(Context& ctx, Member member, const Tensor& dx, const Tensor& dy, bool accumulate,
                                const std::vector<std::int64_t>& counts) const {
  gemm_grouped(ctx.stream, ctx.gemm, Transpose::kNo, Transpose::kNo, 1.0,
               products(member, counts, [&](const Linear& linear, std::int64_t begin, std::int64_t end) {
                 return GemmOperands{dy.rows(begin, end), linear.weight->weight, dx.rows(begin, end), accumulate ? 1.0 : 0.0};
               }));
}

void Experts::queue_weights(Context& ctx, Member member, const Tensor& x, const Tensor& dy,
                            const std::vector<std::int64_t>& counts) const {
  Stream& stream = ctx.stream;
  auto work = [this, &stream, kind = ctx.gemm, member, x, dy, counts] {
    gemm_grouped(stream, kind, Transpose::kYes, Transpose::kNo, 1.0,
                 products(member, counts, [&](const Linear& linear, std::int64_t begin, std::int64_t end) {
                   const auto [dw, accumulate] = linear.weight->begin_contribution(stream);
                   return GemmOperands{dy.rows(begin, end), x.rows(begin, end), dw, accumulate ? 1.0 : 0.0};
                 }));
    for (std::int64_t e = begin_; e < end_; ++e) (all[static_cast<std::size_t>(e)].*member)->weight->end_contribution(stream);
  };
  ctx.weight_grads->add(std::move(work), {x, dy});
}

Tensor Experts::forward(Context& ctx, const ExpertRows& in, Saved& saved) {
  const Tensor g = multiply(ctx, &Expert::gate, in.rows, in.counts), u = multiply(ctx, &Expert::up, in.rows, in.counts);
  const Tensor a = ctx.activation(u.shape());
  if (a.numel() > 0) swiglu_forward(ctx.stream, a, g, u);
  saved.push("experts.in", in);
  saved.push("experts.gate", g);
  saved.push("experts.up", u);
  saved.push("experts.act", a);
  return multiply(ctx, &Expert::down, a, in.counts);
}

Tensor Experts::backward(Context& ctx, const Tensor& dy, Saved& saved) {
  const Tensor a = saved.pop("experts.act"), u = saved.pop("experts.up"), g = saved.pop("experts.gate");
  const ExpertRows in = saved.pop<ExpertRows>("experts.in");
  const Tensor da = ctx.activation(a.shape()), dg = ctx.activation(g.shape()), du = ctx.activation(u.shape());
  multiply_backward(ctx, &Expert::down, da, dy, false, in.counts);
  queue_weights(ctx, &Expert::down, a, dy, in.counts);
  if (da.numel() > 0) swiglu_backward(ctx.stream, dg, du, da, g, u);
  Tensor dx = ctx.activation(in.rows.shape());
  multiply_backward(ctx, &Expert::gate, dx, dg, false, in.counts);
  multiply_backward(ctx, &Expert::up, dx, du, true, in.counts);
  queue_weights(ctx, &Expert::gate, in.rows, dg, in.counts);
  queue_weights(ctx, &Expert::up, in.rows, du, in.counts);
  return dx;
}

}  // namespace ref5d
