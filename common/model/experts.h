// The routed experts of a layer: an MLP each, computed on exactly the rows that it got.
#pragma once

#include <memory>
#include <vector>

#include "common/model/config.h"
#include "common/model/linear.h"
#include "common/model/token_dispatcher.h"

namespace ref5d {

class Experts {
 public:
  Experts(const GptConfig& config, std::int64_t layer);

  // SwiGLU of each expert that is here: rows [n, H] -> [n, H]. An expert without rows computes nothing.
  [[nodiscard]] Tensor forward(Context& ctx, const ExpertRows& in, Saved& saved);
  // dy [n, H] -> the gradient of the rows [n, H]; queues the weights'. An expert without rows adds zero to them, so that every
  // gradient gets its contribution.
  [[nodiscard]] Tensor backward(Context& ctx, const Tensor& dy, Saved& saved);

  // Of all experts, wherever they are.
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const;
  // Leaves experts begin..end-1 here; the others' parameters get an empty part.
  void keep(std::int64_t begin, std::int64_t end);
  [[nodiscard]] std::int64_t begin() const { return begin_; }
  [[nodiscard]] std::int64_t count() const { return end_ - begin_; }

  struct Expert {
    std::unique_ptr<Linear> gate, up, down;
  };
  std::vector<Expert> all;

 private:
  using Member = std::unique_ptr<Linear> Expert::*;
  // One product for each expert that is here: operands(linear, begin, end), of its rows. Counts their flops.
  template <typename Operands>
  [[nodiscard]] std::vector<GemmOperands> products(Member member, const std::vector<std::int64_t>& counts,
                                                   const Operands& operands) const;
  [[nodiscard]] Tensor multiply(Context& ctx, Member member, const Tensor& x, const std::vector<std::int64_t>& counts) const;
  void multiply_backward(Context& ctx, Member member, const Tensor& dx, const Tensor& dy, bool accumulate,
                         const std::vector<std::int64_t>& counts) const;
  void queue_weights(Context& ctx, Member member, const Tensor& x, const Tensor& dy,
                     const std::vector<std::int64_t>& counts) const;

  std::int64_t begin_ = 0, end_ = 0;
};

}  // namespace ref5d
