// A mixture of experts in place of an MLP: y = sum over a token's experts of w_e expert_e(x), plus what the shared experts make
// of every token.
#pragma once

#include <memory>

#include "common/model/experts.h"
#include "common/model/mlp.h"
#include "common/model/router.h"
#include "common/model/shared_experts.h"
#include "common/model/token_dispatcher.h"

namespace ref5d {

class MoeMlp : public Mlp {
 public:
  MoeMlp(const GptConfig& config, std::int64_t layer);

  // x -> router -> tokens on their way
  [[nodiscard]] Tensor dispatch(Context& ctx, const Tensor& x, Saved& saved, std::any& state) override;
  // Shared experts while they travel, then the routed ones; results on their way.
  [[nodiscard]] Tensor compute(Context& ctx, const Tensor& x, Saved& saved, std::any& state) override;
  [[nodiscard]] Tensor combine(Context& ctx, const Tensor& y, Saved& saved, std::any& state) override;
  [[nodiscard]] Tensor combine_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) override;
  [[nodiscard]] Tensor compute_backward(Context& ctx, const Tensor& dy, Saved& saved, std::any& state) override;
  [[nodiscard]] Tensor dispatch_backward(Context& ctx, const Tensor& dx, Saved& saved, std::any& state) override;
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters() const override;
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> buffers() const override;

  Router router;
  Experts experts;
  std::unique_ptr<SharedExperts> shared;  // null where there are none
  std::unique_ptr<TokenDispatcher> dispatcher;
  // Around router and experts. Shared experts are inside of it, or beside it with a region of their own.
  std::unique_ptr<Region> region = std::make_unique<Region>();
  bool shared_inside = true;
  bool shared_meanwhile = true;  // computed while tokens travel; else when they are back

 private:
  struct Pass {
    std::shared_ptr<TokenTrip> trip;
    std::shared_ptr<SharedExperts::Pass> shared;
    Tensor x;  // what the shared experts read: their input, or in backward the gradient of their output
  };
  void begin_shared(Context& ctx, Pass& pass, bool backward);

  std::int64_t layer_;
};

}  // namespace ref5d
