// A linear layer, and the region seam that tensor parallelism replaces.
#pragma once

#include <functional>
#include <memory>

#include "common/device/flops_ledger.h"
#include "common/model/context.h"
#include "common/model/parameter.h"

namespace ref5d {

// y = x W^T + b. The weight is stored [out, in] (Llama), or [in, out] (GPT-2's Conv1D); sizes are those of the local part, so a
// cut placement makes a smaller layer without further ado. Virtual: the tensor-parallel lesson swaps in its own.
//
// Bias and product are separate calls, since a row-parallel layer sums the products over ranks before it adds the bias once.
// backward is two calls: the input gradient is on the critical path, the weight gradient is not.
class Linear {
 public:
  Linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias, bool stored_in_out, double init_std,
         FlopsKind flops = FlopsKind::kBlockLinear);
  virtual ~Linear() = default;

  // x [R, in] -> x W^T [R, out], without the bias.
  [[nodiscard]] virtual Tensor multiply(Context& ctx, const Tensor& x) const;
  virtual void add_bias(Context& ctx, const Tensor& y) const;
  [[nodiscard]] Tensor forward(Context& ctx, const Tensor& x) const {
    Tensor y = multiply(ctx, x);
    add_bias(ctx, y);
    return y;
  }

  // dx [R, in] = dy W (or += if accumulate).
  virtual void backward_input(Context& ctx, const Tensor& dx, const Tensor& dy, bool accumulate) const;
  // Queues dW += dy^T x.
  virtual void backward_weight(Context& ctx, const Tensor& x, const Tensor& dy) const;
  // Queues db += sum over rows of dy.
  virtual void backward_bias(Context& ctx, const Tensor& dy) const;

  [[nodiscard]] std::int64_t in() const { return weight->local_shape()[stored_in_out ? 0 : 1]; }
  [[nodiscard]] std::int64_t out() const { return weight->local_shape()[stored_in_out ? 1 : 0]; }

  std::shared_ptr<Parameter> weight, bias;  // bias may be null
  const bool stored_in_out;
  const FlopsKind flops;
};

// The parameters of a linear layer, weight first.
void append(std::vector<std::shared_ptr<Parameter>>& to, const std::unique_ptr<Linear>& linear);

// A tensor that is on its way: the call that returned it may have started communication; calling it makes the stream wait for
// that and gives the tensor. Called once. It belongs to the pass that asked for it and not to the module, so several
// micro-batches may have one each under way.
using PendingTensor = std::function<Tensor(Context&)>;

// Where activations enter and leave a stretch of the model whose weights are cut. On one device nothing happens; tensor
// parallelism puts its conjugate operators here, sequence parallelism its gather and scatter.
class Region {
 public:
  virtual ~Region() = default;
  // The sublayer's input [R, H] -> what its first linears read [T, H].
  [[nodiscard]] virtual Tensor enter(Context&, const Tensor& x) { return x; }
  // The gradient of enter's result -> that of its input. Weight gradients are computed meanwhile.
  [[nodiscard]] virtual PendingTensor begin_enter_backward(Context&, const Tensor& dx) {
    return [dx](Context&) { return dx; };
  }
  // What the last linear made (a partial sum when cut) -> the sublayer's output, and backward. The caller writes over the
  // output.
  [[nodiscard]] virtual Tensor leave(Context&, const Tensor& y) { return y; }
  [[nodiscard]] virtual Tensor leave_backward(Context&, const Tensor& dy) { return dy; }
  // What of (input, entered) is kept for the weight gradients, and the entered tensor again from that. Input gradients are
  // computed meanwhile.
  [[nodiscard]] virtual Tensor keep(const Context&, const Tensor& /*input*/, const Tensor& entered) { return entered; }
  [[nodiscard]] virtual PendingTensor begin_restore(Context&, const Tensor& kept) {
    return [kept](Context&) { return kept; };
  }
};

}  // namespace ref5d
