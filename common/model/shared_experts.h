// The shared experts of a layer: one MLP that every token uses, as wide as so many experts. It waits for no token of another
// rank, so it can be computed on a stream of its own while tokens travel.
#pragma once

#include <memory>
#include <vector>

#include "common/model/mlp.h"

namespace ref5d {

class SharedExperts {
 public:
  SharedExperts(const GptConfig& config, std::int64_t layer);

  // One micro-batch's pass, between its forward and its backward.
  struct Pass {
    Saved saved;
    Tensor input;   // from forward to backward; it is kept for the weight gradients in any case
    Tensor result;  // while it waits to be added
    // What the stream of their own may still read, though the host has let go of it: until the model's stream waits for it.
    std::vector<Tensor> in_use;
  };
  // Each is begun and, when its result is needed, finished: y += the MLP of x; dx += its gradient.
  void begin_forward(Context& ctx, const Tensor& x, Pass& pass);
  void finish_forward(Context& ctx, const Tensor& y, Pass& pass) { add_result(ctx, y, pass); }
  void begin_backward(Context& ctx, const Tensor& dy, Pass& pass);
  void finish_backward(Context& ctx, const Tensor& dx, Pass& pass) { add_result(ctx, dx, pass); }

  DenseMlp mlp;
  std::shared_ptr<Stream> stream;  // null: the model's

 private:
  void add_result(Context& ctx, const Tensor& to, Pass& pass);
};

}  // namespace ref5d
