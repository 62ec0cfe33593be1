// The feed-forward sublayer in three phases, so that a mixture of experts fits the same seam: tokens go to where they are
// computed, are computed, and come back. A dense MLP enters and leaves its region in the outer phases.
#pragma once

#include <memory>

#include "common/model/config.h"
#include "common/model/linear.h"

namespace ref5d {

class Mlp {
 public:
  virtual ~Mlp() = default;
  // x [T, H] -> what compute reads -> what combine reads -> y [T, H].
  [[nodiscard]] virtual Tensor dispatch(Context& ctx, const Tensor& x, Saved& saved) = 0;
  [[nodiscard]] virtual Tensor compute(Context& ctx, const Tensor& x, Saved& saved) = 0;
  [[nodiscard]] virtual Tensor combine(Context& ctx, const Tensor& y, Saved& saved) = 0;
  // The same upwards.
  [[nodiscard]] virtual Tensor combine_backward(Context& ctx, const Tensor& dy, Saved& saved) = 0;
  [[nodiscard]] virtual Tensor compute_backward(Context& ctx, const Tensor& dy, Saved& saved) = 0;
  [[nodiscard]] virtual Tensor dispatch_backward(Context& ctx, const Tensor& dx, Saved& saved) = 0;
  [[nodiscard]] virtual std::vector<std::shared_ptr<Parameter>> parameters() const = 0;
};

class DenseMlp : public Mlp {
 public:
  DenseMlp(const GptConfig& config, std::int64_t layer);

  [[nodiscard]] Tensor dispatch(Context& ctx, const Tensor& x, Saved& saved) override;
  [[nodiscard]] Tensor compute(Context& ctx, const Tensor& x, Saved& saved) override;
  [[nodiscard]] Tensor combine(Context& ctx, const Tensor& y, Saved& saved) override;
  [[nodiscard]] Tensor combine_backward(Context& ctx, const Tensor& dy, Saved& saved) override;
  [[nodiscard]] Tensor compute_backward(Context& ctx, const Tensor& dy, Saved& saved) override;
  [[nodiscard]] Tensor dispatch_backward(Context& ctx, const Tensor& dx, Saved& saved) override;
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const override;

  std::unique_ptr<Linear> gate;  // SwiGLU only
  std::unique_ptr<Linear> up, down;
  std::unique_ptr<Region> region = std::make_unique<Region>();

 private:
  std::int64_t layer_;
};

}  // namespace ref5d
