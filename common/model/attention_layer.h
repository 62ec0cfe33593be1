// The attention sublayer: projections to q, k, v, rotation, the attention core, and the output projection.
#pragma once

#include <memory>

#include "common/model/config.h"
#include "common/model/linear.h"
#include "common/model/norm.h"

namespace ref5d {

// The heads that are here: query head h uses kv head (h + offset) / group. Offset is 0 unless the first kv head's group begins
// with query heads that are elsewhere.
struct HeadMap {
  std::int64_t head_dim, group;
  std::int64_t offset = 0;
};

// What happens between q, k, v and the output: a seam. Context parallelism swaps in a ring.
// q, o [T, N*D]; k, v [T, K*D]; N and K are the heads that are here.
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  [[nodiscard]] virtual Tensor forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                                       Saved& saved) = 0;
  virtual void backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                        const HeadMap& heads, Saved& saved) = 0;
};

// All tokens are here.
class LocalAttention : public AttentionCore {
 public:
  [[nodiscard]] Tensor forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                               Saved& saved) override;
  void backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const HeadMap& heads,
                Saved& saved) override;
};

class AttentionLayer {
 public:
  AttentionLayer(const GptConfig& config, std::int64_t layer);

  // In two halves, since selective recomputation repeats the first and not the second.
  // attend: x [T, H] (normed) -> the core's output o [T, N*D].   project: o -> the sublayer's output [T, H].
  [[nodiscard]] Tensor attend(Context& ctx, const Tensor& x, Saved& saved);
  [[nodiscard]] Tensor project(Context& ctx, const Tensor& o);
  // dy [T, H] -> the gradient of o; o is what attend returned.
  [[nodiscard]] Tensor project_backward(Context& ctx, const Tensor& dy, const Tensor& o);
  // The gradient of o -> that of x [T, H].
  [[nodiscard]] Tensor attend_backward(Context& ctx, const Tensor& dout, Saved& saved);

  // Either one packed projection (GPT-2) or three.
  std::unique_ptr<Linear> qkv;
  std::unique_ptr<Linear> q, k, v;
  std::unique_ptr<Linear> out;
  std::unique_ptr<Norm> q_norm, k_norm;  // over the head dim; null without qk_norm
  std::unique_ptr<AttentionCore> core = std::make_unique<LocalAttention>();
  std::unique_ptr<Region> region = std::make_unique<Region>();
  HeadMap heads;

  // Heads that are here, from the projections' local sizes.
  [[nodiscard]] std::int64_t local_heads() const { return out->in() / heads.head_dim; }
  [[nodiscard]] std::int64_t local_kv_heads() const {
    return qkv ? (qkv->out() / heads.head_dim - local_heads()) / 2 : k->out() / heads.head_dim;
  }

 private:
  struct Qkv {
    Tensor q, k, v;
  };
  [[nodiscard]] Qkv split(const Tensor& packed) const;
  [[nodiscard]] Tensor normed_heads(Context& ctx, const Norm& norm, const Tensor& x, Saved& saved) const;
  [[nodiscard]] Tensor normed_heads_backward(Context& ctx, const Norm& norm, const Tensor& dy, Saved& saved) const;

  std::int64_t layer_;
};

}  // namespace ref5d
