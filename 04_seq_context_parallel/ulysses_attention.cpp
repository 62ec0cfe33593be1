#include "04_seq_context_parallel/ulysses_attention.h"

#include <fmt/format.h>

#include "common/device/error.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/rows.h"

namespace ref5d::context_parallel {

namespace {

using tensor_parallel::Heads;
using tensor_parallel::Range;

std::vector<Range> query_ranges(const std::vector<Heads>& shares) {
  std::vector<Range> ranges;
  for (const Heads& h : shares) ranges.push_back(h.query);
  return ranges;
}
std::vector<Range> kv_ranges(const std::vector<Heads>& shares) {
  std::vector<Range> ranges;
  for (const Heads& h : shares) ranges.push_back(h.kv);
  return ranges;
}
// Whether two ranks have the same head.
bool share_heads(const std::vector<Range>& ranges) {
  for (std::size_t r = 1; r < ranges.size(); ++r)
    if (ranges[r].begin < ranges[r - 1].end) return true;
  return false;
}

}  // namespace

std::vector<Heads> UlyssesAttention::shares(std::int64_t count, const HeadMap& heads) const {
  std::vector<Heads> all;
  const int ranks = axis_->group_size();
  for (int r = 0; r < ranks; ++r) all.push_back(tensor_parallel::heads_of(count, heads.group, heads.offset, ranks, r));
  return all;
}

std::vector<std::int64_t> UlyssesAttention::rows_by_heads(const Context& ctx, const std::vector<Range>& ranges) const {
  std::vector<std::int64_t> rows;
  for (const Range& range : ranges)
    rows.push_back(ctx.batch->batch * axis_->layout_of_group().length(axis_->place_in_group()) * range.size());
  return rows;
}

std::vector<std::int64_t> UlyssesAttention::rows_by_tokens(const Context& ctx, const std::vector<Range>& ranges) const {
  const std::int64_t heads = ranges[static_cast<std::size_t>(axis_->place_in_group())].size();
  std::vector<std::int64_t> rows;
  for (int r = 0; r < axis_->group_size(); ++r) rows.push_back(ctx.batch->batch * axis_->layout_of_group().length(r) * heads);
  return rows;
}

namespace {

std::int64_t sum(const std::vector<std::int64_t>& values) {
  std::int64_t n = 0;
  for (const std::int64_t v : values) n += v;
  return n;
}

// Stretch r of an array of rows of one head each, as a matrix of `tokens` rows.
Tensor stretch(const Tensor& rows, const std::vector<std::int64_t>& counts, std::size_t r, std::int64_t tokens) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < r; ++i) begin += counts[i];
  return rows.rows(begin, begin + counts[r]).view({tokens, counts[r] / tokens * rows.dim(1)});
}

}  // namespace

Tensor UlyssesAttention::to_heads(Context& ctx, const Tensor& x, const std::vector<Range>& ranges, std::int64_t head_dim,
                                  const char* phase) {
  const AttentionPlan& plan = *plan_of(ctx);
  const std::vector<std::int64_t> out = rows_by_heads(ctx, ranges), in = rows_by_tokens(ctx, ranges);
  const auto buffer = [&](std::int64_t rows) {
    return Tensor::empty({rows, head_dim}, x.dtype(), MemoryCategory::kCommunication, ctx.stream);
  };
  const Tensor sent = buffer(sum(out)), received = buffer(sum(in));
  for (std::size_t r = 0; r < ranges.size(); ++r)
    copy_matrix(ctx.stream, stretch(sent, out, r, x.dim(0)), x.columns(ranges[r].begin * head_dim, ranges[r].end * head_dim));
  axis_->communicate(ctx, phase, [&](Stream& stream) { axis_->group().all_to_all(stream, received, sent, in, out); });
  const std::int64_t tokens = plan.to_sequence.dim(0), columns = received.numel() / tokens;
  Tensor all = Tensor::empty({tokens, columns}, x.dtype(), MemoryCategory::kActivations, ctx.stream);
  take_rows(ctx.stream, all, received.view({tokens, columns}), plan.to_sequence);
  return all;
}

void UlyssesAttention::to_tokens(Context& ctx, const Tensor& here, const Tensor& x, const std::vector<Range>& ranges,
                                 std::int64_t head_dim, const char* phase) {
  const AttentionPlan& plan = *plan_of(ctx);
  const std::vector<std::int64_t> out = rows_by_tokens(ctx, ranges), in = rows_by_heads(ctx, ranges);
  const auto buffer = [&](std::int64_t rows) {
    return Tensor::empty({rows, head_dim}, x.dtype(), MemoryCategory::kCommunication, ctx.stream);
  };
  const Tensor sent = buffer(sum(out)), received = buffer(sum(in));
  take_rows(ctx.stream, sent.view(x.shape()), x, plan.to_ranks);
  axis_->communicate(ctx, phase, [&](Stream& stream) { axis_->group().all_to_all(stream, received, sent, in, out); });
  const bool adds = share_heads(ranges);
  const Tensor total = adds ? zero_sum(ctx, here.dim(0), here.dim(1), here.dtype()) : here;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    const Tensor to = total.columns(ranges[r].begin * head_dim, ranges[r].end * head_dim);
    const Tensor from = stretch(received, in, r, here.dim(0));
    (adds ? add_matrix : copy_matrix)(ctx.stream, to, from);
  }
  if (adds) round_into(ctx, here, total);
}

Tensor UlyssesAttention::forward(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const HeadMap& heads,
                                 Saved& saved) {
  if (plan_of(ctx) == nullptr) return local_.forward(ctx, q, k, v, heads, saved);
  const char* phase = forward_phase(ctx);
  const std::vector<Heads> of_rank = shares(q.dim(1) / heads.head_dim, heads);
  const std::vector<Range> query = query_ranges(of_rank), kv = kv_ranges(of_rank);
  const HeadMap mine{heads.head_dim, heads.group, of_rank[static_cast<std::size_t>(axis_->place_in_group())].offset};
  const auto exchange = [&](const Tensor& x, const std::vector<Range>& r) {
    return to_heads(ctx, x, r, heads.head_dim, phase);
  };
  const Tensor inner_q = exchange(q, query), inner_k = exchange(k, kv), inner_v = exchange(v, kv);
  const Tensor inner_o = inner_.forward(ctx, inner_q, inner_k, inner_v, mine, saved);
  Tensor o = ctx.activation(q.shape());
  to_tokens(ctx, o, inner_o, query, heads.head_dim, phase);
  return o;
}

void UlyssesAttention::backward(Context& ctx, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                                const HeadMap& heads, Saved& saved) {
  const std::vector<Heads> of_rank = shares(dq.dim(1) / heads.head_dim, heads);
  const std::vector<Range> query = query_ranges(of_rank), kv = kv_ranges(of_rank);
  const Heads& own = of_rank[static_cast<std::size_t>(axis_->place_in_group())];
  const HeadMap mine{heads.head_dim, heads.group, own.offset};
  const Tensor inner_dout = to_heads(ctx, dout, query, heads.head_dim, "backward");
  // Gradients of kv heads that several ranks have are terms of a sum.
  const Dtype dkv_dtype = share_heads(kv) ? accumulator_of(dk.dtype()) : dk.dtype();
  const auto gradient = [&](std::int64_t count, Dtype dtype) {
    return Tensor::empty({inner_dout.dim(0), count * heads.head_dim}, dtype, MemoryCategory::kActivations, ctx.stream);
  };
  const Tensor inner_dq = gradient(own.query.size(), dq.dtype()), inner_dk = gradient(own.kv.size(), dkv_dtype),
               inner_dv = gradient(own.kv.size(), dkv_dtype);
  inner_.backward(ctx, inner_dq, inner_dk, inner_dv, inner_dout, mine, saved);
  to_tokens(ctx, dq, inner_dq, query, heads.head_dim, "backward");
  to_tokens(ctx, dk, inner_dk, kv, heads.head_dim, "backward");
  to_tokens(ctx, dv, inner_dv, kv, heads.head_dim, "backward");
}

void expect_heads(const ContextParallelOptions& options, std::int64_t heads, int cp, int tp) {
  const int ranks = options.ulysses_size > 0 ? options.ulysses_size : cp;
  if (options.kind != "ulysses" || heads >= ranks) return;
  const int fits = largest_divisor(cp, heads);
  const std::string groups = fits > 1 ? fmt::format("--ulysses-size {}, which a ring joins, or ", fits) : "";
  const std::string whose = tp > 1 ? fmt::format(" (of one of {} tensor-parallel ranks)", tp) : "";
  throw InputError(
      fmt::format("--cp-kind ulysses over {} ranks cannot cut {} head{}{}: every rank needs one at least; use "
                  "{}--cp-kind ring",
                  ranks, heads, heads == 1 ? "" : "s", whose, groups));
}

}  // namespace ref5d::context_parallel
