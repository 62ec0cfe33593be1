#include "06_expert_parallel/row_share_region.h"

#include "04_seq_context_parallel/token_shares.h"

namespace ref5d::expert_parallel {

Tensor RowShareRegion::own_rows(const Tensor& x) const {
  const tensor_parallel::Range share = tensor_parallel::share_of(x.dim(0), axis_->size(), axis_->rank());
  return x.rows(share.begin, share.end);
}

Tensor RowShareRegion::enter(Context&, const Tensor& x) { return own_rows(x); }

PendingTensor RowShareRegion::begin_enter_backward(Context& ctx, const Tensor& dx) {
  return sequence_parallel::begin_all_gather(*axis_, ctx, dx, ctx.batch->token_count(), "backward");
}

Tensor RowShareRegion::leave(Context& ctx, const Tensor& y) {
  const char* phase = ctx.recomputing ? "recomputation" : "forward";
  return sequence_parallel::begin_all_gather(*axis_, ctx, y, ctx.batch->token_count(), phase)(ctx);
}

Tensor RowShareRegion::leave_backward(Context&, const Tensor& dy) { return own_rows(dy); }

}  // namespace ref5d::expert_parallel
