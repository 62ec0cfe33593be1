#include "common/model/attention_layer.h"

#include <cmath>

#include "common/device/device.h"
#include "common/kernels/elementwise.h"

namespace ref5d {

namespace {
AttentionShape shape_of(const Context& ctx, const Tensor& q, const Tensor& k, const HeadMap& heads) {
  const std::int64_t batch = ctx.batch->batch, head_dim = heads.head_dim;
  return {batch,
          q.dim(0) / batch,
          k.dim(0) / batch,
          q.dim(1) / head_dim,
          k.dim(1) / head_dim,
          head_dim,
          1.0 / std::sqrt(static_cast<double>(head_dim)),
          heads.group,
          heads.offset};
}
}  // namespace

Tensor LocalAttention::forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                               Saved& saved) {
  const AttentionShape shape = shape_of(ctx, q, k, heads);
  Tensor o = ctx.activation({q.dim(0), q.dim(1)});
  const Tensor lse = ctx.statistic({shape.batch, shape.heads, shape.q_len});
  attention_forward(ctx.stream, ctx.attention, shape, ctx.batch->attention, o, lse, q, k, v);
  device().flops().add(FlopsKind::kAttention, attention_forward_flops(ctx.batch->visible_pairs, shape.heads, shape.head_dim));
  for (const auto& [tag, tensor] : {std::pair{"core.q", q}, {"core.k", k}, {"core.v", v}, {"core.o", o}, {"core.lse", lse}})
    saved.push(tag, tensor);
  return o;
}

void LocalAttention::backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                              const HeadMap& heads, Saved& saved) {
  const Tensor lse = saved.pop("core.lse"), o = saved.pop("core.o");
  const Tensor v = saved.pop("core.v"), k = saved.pop("core.k"), q = saved.pop("core.q");
  const AttentionShape shape = shape_of(ctx, q, k, heads);
  const Tensor delta = ctx.statistic({shape.batch, shape.heads, shape.q_len});
  attention_delta(ctx.stream, shape, delta, dout, o);
  attention_backward(ctx.stream, ctx.attention, shape, ctx.batch->attention, dq, dk, dv, dout, q, k, v, lse, delta, false);
  device().flops().add(FlopsKind::kAttention, attention_backward_flops(ctx.batch->visible_pairs, shape.heads, shape.head_dim));
}

AttentionLayer::AttentionLayer(const GptConfig& c, std::int64_t layer)
    : heads{c.head_dim(), c.heads / c.kv_heads}, layer_(layer) {
  const std::int64_t head_dim = c.head_dim(), q_size = c.heads * head_dim, kv_size = c.kv_heads * head_dim;
  const double out_std = c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers));
  if (c.family == Family::kGpt2) {
    const std::string name = "transformer.h." + std::to_string(layer) + ".attn.";
    qkv = std::make_unique<Linear>(name + "c_attn", c.hidden, q_size + 2 * kv_size, c.biases, true, c.init_std);
    out = std::make_unique<Linear>(name + "c_proj", q_size, c.hidden, c.biases, true, out_std);
  } else {
    const std::string name = "model.layers." + std::to_string(layer) + ".self_attn.";
    q = std::make_unique<Linear>(name + "q_proj", c.hidden, q_size, c.biases, false, c.init_std);
    k = std::make_unique<Linear>(name + "k_proj", c.hidden, kv_size, c.biases, false, c.init_std);
    v = std::make_unique<Linear>(name + "v_proj", c.hidden, kv_size, c.biases, false, c.init_std);
    out = std::make_unique<Linear>(name + "o_proj", q_size, c.hidden, c.biases, false, out_std);
    if (c.qk_norm) {
      q_norm = std::make_unique<Norm>(name + "q_norm", head_dim, NormKind::kRms, c.norm_eps);
      k_norm = std::make_unique<Norm>(name + "k_norm", head_dim, NormKind::kRms, c.norm_eps);
    }
  }
}

AttentionLayer::Qkv AttentionLayer::split(const Tensor& packed) const {
  const std::int64_t q_size = local_heads() * heads.head_dim, kv_size = local_kv_heads() * heads.head_dim;
  return {packed.columns(0, q_size), packed.columns(q_size, q_size + kv_size),
          packed.columns(q_size + kv_size, q_size + 2 * kv_size)};
}

// The norm sees each head of each token as a row.
Tensor AttentionLayer::normed_heads(Context& ctx, const Norm& norm, const Tensor& x, Saved& saved) const {
  return norm.forward(ctx, x.view({x.numel() / heads.head_dim, heads.head_dim}), saved).view(x.shape());
}

Tensor AttentionLayer::normed_heads_backward(Context& ctx, const Norm& norm, const Tensor& dy, Saved& saved) const {
  Tensor dx = ctx.activation(dy.shape());
  const Shape rows{dy.numel() / heads.head_dim, heads.head_dim};
  norm.backward(ctx, dx.view(rows), dy.view(rows), saved, false);
  return dx;
}

Tensor AttentionLayer::attend(Context& ctx, const Tensor& x, Saved& saved) {
  const Tensor in = region->enter(ctx, x);
  saved.push("attention.in", region->keep(ctx, x, in));
  Qkv t = qkv ? split(qkv->forward(ctx, in)) : Qkv{q->forward(ctx, in), k->forward(ctx, in), v->forward(ctx, in)};
  if (q_norm) {
    t.q = normed_heads(ctx, *q_norm, t.q, saved);
    t.k = normed_heads(ctx, *k_norm, t.k, saved);
  }
  if (ctx.batch->rope.cos) {
    rope(ctx.stream, t.q, ctx.batch->rope, local_heads(), false);
    rope(ctx.stream, t.k, ctx.batch->rope, local_kv_heads(), false);
  }
  for (const auto& [name, tensor] : {std::pair{"q", t.q}, {"k", t.k}, {"v", t.v}}) ctx.see_sub("sub", layer_, name, tensor);
  Tensor o = core->forward(ctx, t.q, t.k, t.v, heads, saved);
  ctx.see_sub("sub", layer_, "attn", o);
  return o;
}

Tensor AttentionLayer::project(Context& ctx, const Tensor& o) {
  Tensor y = region->leave(ctx, out->multiply(ctx, o));
  out->add_bias(ctx, y);
  ctx.see_sub("sub", layer_, "o_proj", y);
  return y;
}

Tensor AttentionLayer::project_backward(Context& ctx, const Tensor& dy, const Tensor& o) {
  ctx.see_sub("sub_grad", layer_, "o_proj", dy);
  out->backward_bias(ctx, dy);
  const Tensor d = region->leave_backward(ctx, dy);
  Tensor dout = ctx.activation({o.dim(0), o.dim(1)});
  out->backward_input(ctx, dout, d, false);
  out->backward_weight(ctx, o, d);
  ctx.see_sub("sub_grad", layer_, "attn", dout);
  return dout;
}

Tensor AttentionLayer::attend_backward(Context& ctx, const Tensor& dout, Saved& saved) {
  const std::int64_t tokens = dout.dim(0), q_size = local_heads() * heads.head_dim, kv_size = local_kv_heads() * heads.head_dim;
  const Tensor packed = qkv ? ctx.activation({tokens, q_size + 2 * kv_size}) : Tensor();
  Qkv d = qkv ? split(packed)
              : Qkv{ctx.activation({tokens, q_size}), ctx.activation({tokens, kv_size}), ctx.activation({tokens, kv_size})};
  core->backward(ctx, d.q, d.k, d.v, dout, heads, saved);
  for (const auto& [name, tensor] : {std::pair{"v", d.v}, {"k", d.k}, {"q", d.q}})
    ctx.see_sub("sub_grad", layer_, name, tensor);
  if (ctx.batch->rope.cos) {
    rope(ctx.stream, d.k, ctx.batch->rope, local_kv_heads(), true);
    rope(ctx.stream, d.q, ctx.batch->rope, local_heads(), true);
  }
  if (q_norm) {
    d.k = normed_heads_backward(ctx, *k_norm, d.k, saved);
    d.q = normed_heads_backward(ctx, *q_norm, d.q, saved);
  }
  const PendingTensor restoring = region->begin_restore(ctx, saved.pop("attention.in"));
  const Tensor dx = ctx.activation({tokens, qkv ? qkv->in() : q->in()});
  if (qkv) {
    qkv->backward_input(ctx, dx, packed, false);
  } else {  // one input, three uses: its gradient is the sum
    q->backward_input(ctx, dx, d.q, false);
    k->backward_input(ctx, dx, d.k, true);
    v->backward_input(ctx, dx, d.v, true);
  }
  const Tensor in = restoring(ctx);
  const PendingTensor entering = region->begin_enter_backward(ctx, dx);
  auto weight_gradients = [&](const Linear& linear, const Tensor& dy) {
    linear.backward_bias(ctx, dy);
    linear.backward_weight(ctx, in, dy);
  };
  if (qkv) {
    weight_gradients(*qkv, packed);
  } else {
    weight_gradients(*q, d.q);
    weight_gradients(*k, d.k);
    weight_gradients(*v, d.v);
  }
  ctx.weight_grads->run_ready();
  return entering(ctx);
}

}  // namespace ref5d
