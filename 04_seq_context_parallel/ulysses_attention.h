// Ulysses: instead of some tokens of all heads a rank takes, for the time of the attention, all tokens of some heads. An
// all-to-all turns one into the other, and another one turns the output back:
//
//              heads 0 1 2 3             heads 0 1 | 2 3
//   rank 0   tokens x x x x                    x x | x x  tokens of rank 0
//            ---------------    <- ->          x x | x x  tokens of rank 1
//   rank 1   tokens x x x x                rank 0   rank 1
//
// Four all-to-alls a layer (q, k, v and the output) in forward and four in backward, and between them the attention is that of
// one device: nothing is merged, and no layout of the sequence is unbalanced. But a rank needs a head: at most as many ranks as
// there are query heads. Where kv heads are fewer, ranks that need the same one each get it, as tensor parallelism has it
// (03_tensor_parallel/cut.h), and its gradient is the sum of theirs.
//
// Over a part of the axis's ranks, the groups' attention goes on over a ring, with fewer and larger hops.
//
// Source: Jacobs et al. 2023, "DeepSpeed Ulysses"; both together: Fang & Zhao 2024, "USP".
#pragma once

#include <memory>

#include "03_tensor_parallel/cut.h"
#include "04_seq_context_parallel/ring_attention.h"

namespace ref5d::context_parallel {

class UlyssesAttention : public AttentionCore {
 public:
  explicit UlyssesAttention(std::shared_ptr<ContextAxis> axis) : axis_(std::move(axis)), inner_(axis_) {}
  [[nodiscard]] Tensor forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                               Saved& saved) override;
  void backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const HeadMap& heads,
                Saved& saved) override;

 private:
  using Range = tensor_parallel::Range;
  using Heads = tensor_parallel::Heads;
  // Which heads each rank of the group takes, of `count` query heads that every rank has.
  [[nodiscard]] std::vector<Heads> shares(std::int64_t count, const HeadMap& heads) const;
  // Of the heads `ranges[r]` that rank r takes: [T here, heads * D] -> [T of the group, this rank's heads * D].
  [[nodiscard]] Tensor to_heads(Context& ctx, const Tensor& x, const std::vector<Range>& ranges, std::int64_t head_dim,
                                const char* phase);
  // Back: x [T of the group, this rank's heads * D] into `here` [T here, heads * D]. Heads that several ranks had are added up.
  void to_tokens(Context& ctx, const Tensor& here, const Tensor& x, const std::vector<Range>& ranges, std::int64_t head_dim,
                 const char* phase);
  // Of the messages between this rank and each rank of the group, how many rows of D elements, a head of a token each: of this
  // rank's tokens the heads that the other takes, and of the other's tokens the heads that this one takes.
  [[nodiscard]] std::vector<std::int64_t> rows_by_heads(const Context& ctx, const std::vector<Range>& ranges) const;
  [[nodiscard]] std::vector<std::int64_t> rows_by_tokens(const Context& ctx, const std::vector<Range>& ranges) const;

  std::shared_ptr<ContextAxis> axis_;
  RingAttention inner_;
  LocalAttention local_;
};

// InputError if some rank would have no head. heads: of one rank before the exchange.
void expect_heads(const ContextParallelOptions& options, std::int64_t heads, int cp, int tp);

}  // namespace ref5d::context_parallel
