// Context parallelism by gathering: every rank's queries stay, and all keys and values come to every rank. One call instead of
// N-1 hops, and nothing to merge; but nothing is computed meanwhile, and for the moment of a layer's attention each rank has
// the keys and values of the whole sequence. With grouped queries these are small (Llama 3 was trained so).
//
// Backward gathers again, rather than keep what the ranks have divided, and reduce-scatters dk and dv: each rank's queries have
// a share of every key's gradient. Terms of a sum travel in the accumulator's dtype (P33).
//
// Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.3.2.
#pragma once

#include <memory>

#include "04_seq_context_parallel/block_attention.h"

namespace ref5d::context_parallel {

class AllGatherAttention : public AttentionCore {
 public:
  explicit AllGatherAttention(std::shared_ptr<ContextAxis> axis) : axis_(std::move(axis)) {}
  [[nodiscard]] Tensor forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                               Saved& saved) override;
  void backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const HeadMap& heads,
                Saved& saved) override;

 private:
  // [B * S, columns] in the sequence's order, of all ranks' [B * S here, columns].
  [[nodiscard]] Tensor gather(Context& ctx, const Tensor& here, const char* phase);
  // here = this rank's tokens of the sum over ranks of x [B * S, columns].
  void reduce_scatter(Context& ctx, const Tensor& here, const Tensor& x);
  // Rows of a message: as many as the rank with most tokens has, since shards travel in one length.
  [[nodiscard]] std::int64_t message_rows(const Context& ctx) const;

  std::shared_ptr<ContextAxis> axis_;
  LocalAttention local_;
};

}  // namespace ref5d::context_parallel
