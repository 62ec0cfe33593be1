// The feed-forward sublayer in three phases, so that a mixture of experts fits the same seam: tokens go to where they are
// computed, are computed, and come back. A dense MLP enters and leaves its region in the outer phases.
#pragma once

#include <any>
#include <memory>

#include "common/model/config.h"
#include "common/model/linear.h"

namespace ref5d {

// `state` is what the phases of one pass hand on beside that tensor (a router's choices, communication under way). It is the
// pass's, empty before its first phase and dropped after its last, so a module keeps nothing between two calls. What backward
// needs of forward goes through Saved.
class Mlp {
 public:
  virtual ~Mlp() = default;
  // x [R, H] -> what compute reads -> what combine reads -> y [R, H].
  [[nodiscard]] virtual Tensor dispatch(Context& ctx, const Tensor& x, Saved& saved, std::any& state) = 0;
  [[nodiscard]] virtual Tensor compute(Context& ctx, const Tensor& x, Saved& saved, std::any& state) = 0;
  [[nodiscard]] virtual Tensor combine(Context& ctx, const Tensor& y, Saved& saved, std::any& state) = 0;
  // The same upwards.
  [[nodiscard]] virtual Tensor combine_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) = 0;
  [[nodiscard]] virtual Tensor compute_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) = 0;
  [[nodiscard]] virtual Tensor dispatch_backward(Context& ctx, const Tensor& dx, Saved& saved, std::any& state) = 0;
  [[nodiscard]] virtual std::vector<std::shared_ptr<Parameter>> parameters() const = 0;
  // What belongs to the model and is not trained by gradients.
  [[nodiscard]] virtual std::vector<std::shared_ptr<Parameter>> buffers() const { return {}; }
};

class DenseMlp : public Mlp {
 public:
  DenseMlp(const GptConfig& config, std::int64_t layer);
  // With another name for its parameters than the layer's.
  DenseMlp(const GptConfig& config, std::int64_t layer, const std::string& name);

  [[nodiscard]] Tensor dispatch(Context& ctx, const Tensor& x, Saved& saved, std::any& state) override;
  [[nodiscard]] Tensor compute(Context& ctx, const Tensor& x, Saved& saved, std::any& state) override;
  [[nodiscard]] Tensor combine(Context& ctx, const Tensor& y, Saved& saved, std::any& state) override;
  [[nodiscard]] Tensor combine_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) override;
  [[nodiscard]] Tensor compute_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) override;
  [[nodiscard]] Tensor dispatch_backward(Context& ctx, const Tensor& dx, Saved& saved, std::any& state) override;
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const override;

  std::unique_ptr<Linear> gate;  // SwiGLU only
  std::unique_ptr<Linear> up, down;
  std::unique_ptr<Region> region = std::make_unique<Region>();

 private:
  std::int64_t layer_;
};

}  // namespace ref5d
