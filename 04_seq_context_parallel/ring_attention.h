// Ring attention: queries stay, keys and values go round.
//
//   hop        0        1        2        3            rank r at hop h computes with the keys of rank r - h,
//   rank 0    kv 0     kv 3     kv 2     kv 1          and meanwhile sends them on to r + 1
//   rank 1    kv 1     kv 0     kv 3     kv 2
//   rank 2    kv 2     kv 1     kv 0     kv 3
//   rank 3    kv 3     kv 2     kv 1     kv 0
//
// Forward: each hop gives the output and the log-sum-exp over its keys alone, and they are merged (kernels/attention_merge.h)
// in the accumulator's dtype: rounded to bf16 at every hop, the error would grow with the ring (pitfall P33).
//
// Backward goes round again. With the log-sum-exp of all keys, p = exp(s - lse) is the probability of the whole row, whatever
// block its key is in, so each hop's share of dq, dk and dv just adds up (P34). dq stays; the sums of dk and dv follow their
// keys, a hop behind them, and arrive at home after the last: N-1 messages like the keys', in the accumulator's dtype. What a
// rank contributes to its own keys it adds there.
//
// Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers".
#pragma once

#include <memory>
#include <vector>

#include "04_seq_context_parallel/block_attention.h"

namespace ref5d::context_parallel {

// Over the axis's ring of groups. On a ring of one it is attention over the one block.
class RingAttention : public AttentionCore {
 public:
  explicit RingAttention(std::shared_ptr<ContextAxis> axis) : axis_(std::move(axis)) {}
  [[nodiscard]] Tensor forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                               Saved& saved) override;
  // dq, dk and dv may be in the accumulator's dtype.
  void backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const HeadMap& heads,
                Saved& saved) override;

 private:
  // What is on its way from the rank before, while `sent` is on its way to the next.
  struct Pass {
    KeyValues arriving, sent;
    std::shared_ptr<Event> begun, done;
  };
  [[nodiscard]] Pass pass_on(Context& ctx, const KeyValues& mine, std::int64_t rows, const char* phase);
  // The stream goes on when it has arrived, and what was sent is given up.
  [[nodiscard]] KeyValues arrived(Context& ctx, Pass& pass);
  // A mistake to show: the log-sum-exp of this block's keys alone.
  [[nodiscard]] static Tensor own_lse(Context& ctx, const KeyBlock& block, const HeadMap& heads, const Tensor& q,
                                      const KeyValues& kv, const Tensor& like);
  // Whose keys are here at a hop.
  [[nodiscard]] std::size_t source(int hop) const;

  std::shared_ptr<ContextAxis> axis_;
  LocalAttention local_;
};

}  // namespace ref5d::context_parallel
