#include <stdexcept>
#include <string>

#include "common/device/error.h"
#include "common/device/launch.h"
#include "common/kernels/attention_kernels.h"
#include "common/kernels/dispatch.h"

namespace ref5d {
namespace {

// table[run] = min order, max order and, if there is a start, min start, max start. Runs are numbered through the batch.
__global__ void token_runs_kernel(std::int32_t* __restrict__ table, const std::int32_t* __restrict__ order,
                                  const std::int32_t* __restrict__ start, std::int64_t batch, std::int64_t length) {
  const std::int64_t runs = token_runs(length), width = start ? 4 : 2;
  for (std::int64_t i : grid_range(batch * runs)) {
    const std::int64_t row = i / runs * length, begin = i % runs * kTokenRun, end = min(length, begin + kTokenRun);
    for (std::int64_t part = 0; part < width / 2; ++part) {
      const std::int32_t* values = (part == 0 ? order : start) + row;
      std::int32_t least = values[begin], greatest = values[begin];
      for (std::int64_t t = begin + 1; t < end; ++t) {
        least = min(least, values[t]);
        greatest = max(greatest, values[t]);
      }
      table[i * width + part * 2] = least;
      table[i * width + part * 2 + 1] = greatest;
    }
  }
}

// delta of one (token, head) per index: delta[b, head, s] = dout . o.
template <typename T, typename O>
__global__ void attention_delta_kernel(Acc<T>* __restrict__ delta, const T* __restrict__ dout, const O* __restrict__ o,
                                       std::int64_t tokens, AttentionArgs args, std::int64_t dout_ld) {
  using A = Acc<T>;
  for (std::int64_t i : grid_range(tokens * args.heads)) {
    const std::int64_t token = i / args.heads, head = i % args.heads, b = token / args.q_len, s = token % args.q_len;
    const T* x = dout + token * dout_ld + head * args.head_dim;
    const O* y = o + token * args.o_ld + head * args.head_dim;
    A sum = 0;
    REF5D_SIMD_SUM(sum)
    for (std::int64_t d = 0; d < args.head_dim; ++d) sum += A(x[d]) * A(y[d]);
    delta[(b * args.heads + head) * args.q_len + s] = sum;
  }
}

std::int64_t group_of(const AttentionShape& s) { return s.group == 0 ? s.heads / s.kv_heads : s.group; }

void expect_shape(const AttentionShape& s) {
  if (s.batch < 0 || s.q_len < 0 || s.k_len < 0 || s.heads < 1 || s.kv_heads < 1 || s.head_dim < 1)
    throw std::logic_error("attention needs at least one head, one kv head and one channel per head");
  if (s.group == 0 && s.heads % s.kv_heads != 0)
    throw std::logic_error(std::to_string(s.heads) + " heads cannot share " + std::to_string(s.kv_heads) +
                           " kv heads evenly; the first must be a multiple of the second");
  const std::int64_t group = group_of(s);
  if (s.head_offset < 0 || s.head_offset >= group)
    throw std::logic_error("a group of " + std::to_string(group) + " heads cannot begin " + std::to_string(s.head_offset) +
                           " heads before the first; the offset must be at least 0 and less than the group");
  if ((s.heads - 1 + s.head_offset) / group != s.kv_heads - 1)
    throw std::logic_error(std::to_string(s.heads) + " heads in groups of " + std::to_string(group) + " with offset " +
                           std::to_string(s.head_offset) + " do not use " + std::to_string(s.kv_heads) +
                           " kv heads; the last head must use the last kv head");
  if (s.head_dim > kMaxHeadDim)
    throw InputError("head dim " + std::to_string(s.head_dim) + " is beyond " + std::to_string(kMaxHeadDim) +
                     ", the largest that attention is built for; use more heads");
}

AttentionArgs make_args(const AttentionShape& s, const AttentionTokens& t, const Tensor& q, const Tensor& k, const Tensor& v) {
  expect_shape(s);
  expect(q, {s.batch * s.q_len, s.heads * s.head_dim}, q.dtype(), "attention q");
  expect(k, {s.batch * s.k_len, s.kv_heads * s.head_dim}, q.dtype(), "attention k");
  expect(v, {s.batch * s.k_len, s.kv_heads * s.head_dim}, q.dtype(), "attention v");
  expect(t.q_order, {s.batch, s.q_len}, Dtype::kInt32, "attention q_order");
  expect(t.q_start, {s.batch, s.q_len}, Dtype::kInt32, "attention q_start");
  expect(t.k_order, {s.batch, s.k_len}, Dtype::kInt32, "attention k_order");
  expect(t.q_runs, {s.batch, token_runs(s.q_len), 4}, Dtype::kInt32, "attention q_runs");
  expect(t.k_runs, {s.batch, token_runs(s.k_len), 2}, Dtype::kInt32, "attention k_runs");
  AttentionArgs args{};
  args.batch = s.batch, args.q_len = s.q_len, args.k_len = s.k_len;
  args.heads = s.heads, args.kv_heads = s.kv_heads, args.head_dim = s.head_dim, args.scale = s.scale;
  args.group = group_of(s), args.head_offset = s.head_offset;
  args.q_ld = q.ld(), args.k_ld = k.ld(), args.v_ld = v.ld();
  args.q_order = t.q_order.data<std::int32_t>(), args.q_start = t.q_start.data<std::int32_t>();
  args.k_order = t.k_order.data<std::int32_t>();
  args.q_runs = t.q_runs.data<std::int32_t>(), args.k_runs = t.k_runs.data<std::int32_t>();
  return args;
}

void expect_output(const Tensor& t, const Tensor& like, Dtype dtype, const char* what) {
  expect(t, like.shape(), t.dtype() == dtype ? dtype : accumulator_of(dtype), what);
}

}  // namespace

AttentionTokens make_attention_tokens(Stream& stream, const Tensor& q_order, const Tensor& q_start, const Tensor& k_order) {
  const std::int64_t batch = q_order.dim(0), q_len = q_order.dim(1), q_runs = token_runs(q_len);
  expect(q_order, {batch, q_len}, Dtype::kInt32, "attention q_order");
  expect(q_start, {batch, q_len}, Dtype::kInt32, "attention q_start");
  for (const Tensor* t : {&q_order, &q_start}) expect_contiguous(*t, "make_attention_tokens");
  AttentionTokens tokens{q_order, q_start, {}, {}, {}};
  tokens.q_runs = Tensor::empty({batch, q_runs, 4}, Dtype::kInt32, MemoryCategory::kWorkspace, stream);
  launch<token_runs_kernel>(stream, grid_for(batch * q_runs), block_size(256), tokens.q_runs.data<std::int32_t>(),
                            q_order.data<std::int32_t>(), q_start.data<std::int32_t>(), batch, q_len);
  return with_keys(stream, tokens, k_order);
}

AttentionTokens with_keys(Stream& stream, const AttentionTokens& queries, const Tensor& k_order) {
  const std::int64_t batch = queries.q_order.dim(0), k_len = k_order.dim(1), k_runs = token_runs(k_len);
  expect(k_order, {batch, k_len}, Dtype::kInt32, "attention k_order");
  expect_contiguous(k_order, "make_attention_tokens");
  AttentionTokens tokens = queries;
  tokens.k_order = k_order;
  tokens.k_runs = Tensor::empty({batch, k_runs, 2}, Dtype::kInt32, MemoryCategory::kWorkspace, stream);
  launch<token_runs_kernel>(stream, grid_for(batch * k_runs), block_size(256), tokens.k_runs.data<std::int32_t>(),
                            k_order.data<std::int32_t>(), nullptr, batch, k_len);
  return tokens;
}

void attention_forward(Stream& stream, AttentionKind kind, const AttentionShape& shape, const AttentionTokens& tokens,
                       const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v) {
  AttentionArgs args = make_args(shape, tokens, q, k, v);
  expect_output(o, q, q.dtype(), "attention o");
  expect(lse, {shape.batch, shape.heads, shape.q_len}, accumulator_of(q.dtype()), "attention lse");
  args.o_ld = o.ld();
  (kind == AttentionKind::kFlash ? flash_attention_forward : naive_attention_forward)(stream, args, o, lse, q, k, v);
}

void attention_delta(Stream& stream, const AttentionShape& shape, const Tensor& delta, const Tensor& dout, const Tensor& o) {
  expect_shape(shape);
  const std::int64_t tokens = shape.batch * shape.q_len;
  expect(dout, {tokens, shape.heads * shape.head_dim}, dout.dtype(), "attention dout");
  expect_output(o, dout, dout.dtype(), "attention o");
  expect(delta, {shape.batch, shape.heads, shape.q_len}, accumulator_of(dout.dtype()), "attention delta");
  AttentionArgs args{};
  args.q_len = shape.q_len, args.heads = shape.heads, args.head_dim = shape.head_dim, args.o_ld = o.ld();
  dispatch_with_output(dout.dtype(), o.dtype(), [&]<typename T, typename O>() {
    launch<attention_delta_kernel<T, O>>(stream, grid_for(dout.numel()), block_size(256), delta.data<Acc<T>>(), dout.data<T>(),
                                         o.data<O>(), tokens, args, dout.ld());
  });
}

void attention_backward(Stream& stream, AttentionKind kind, const AttentionShape& shape, const AttentionTokens& tokens,
                        const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta, bool accumulate) {
  AttentionArgs args = make_args(shape, tokens, q, k, v);
  expect(dout, q.shape(), q.dtype(), "attention dout");
  for (const Tensor* t : {&lse, &delta})
    expect(*t, {shape.batch, shape.heads, shape.q_len}, accumulator_of(q.dtype()), "attention lse or delta");
  expect_output(dq, q, q.dtype(), "attention dq");
  expect_output(dk, k, q.dtype(), "attention dk");
  expect_output(dv, v, q.dtype(), "attention dv");
  args.o_ld = dout.ld();
  if (kind == AttentionKind::kNaive) {
    naive_attention_backward(stream, args, dq, dk, dv, dout, q, k, v, lse, delta, accumulate);
    return;
  }
  flash_attention_backward_kv(stream, args, dk, dv, dout, q, k, v, lse, delta, accumulate);
  flash_attention_backward_q(stream, args, dq, dout, q, k, v, lse, delta, accumulate);
}

}  // namespace ref5d
