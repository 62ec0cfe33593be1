// A router's view of the micro-batch of its replica, whose tokens are on several ranks: along cp, and along tp where ranks have
// different rows (sequence parallelism, or whole experts on every rank).
//
// DESIGN: the auxiliary loss is counted per micro-batch of a data-parallel replica, over its cp and sp ranks. A product of two
// means is not a mean of products (pitfall T8): so the ranks add up their counts and probabilities before they multiply them.
#pragma once

#include <memory>

#include "03_tensor_parallel/cut.h"
#include "06_expert_parallel/expert_options.h"
#include "common/comm/communicator.h"
#include "common/model/router.h"

namespace ref5d::expert_parallel {

// Which rows of a micro-batch a router gets.
enum class RouterRows {
  kResidual,    // those of the residual stream that are here
  kAll,         // all of this rank's tokens, as every rank along tp
  kShareOfAll,  // this rank's share of them
};

class ReplicaScope : public RouterScope {
 public:
  struct Setup {
    RouterRows rows;
    int tp, tp_rank;
    bool first;            // of the ranks that compute the same losses
    Communicator* others;  // the ranks that have the micro-batch's other tokens; null if there are none
    std::shared_ptr<Stream> stream;
    Faults faults;
  };
  explicit ReplicaScope(Setup setup) : setup_(std::move(setup)) {}

  [[nodiscard]] ResidualRows rows(const MicroBatch& b) const override;
  void sum(Context& ctx, const Tensor& x) const override;
  [[nodiscard]] Tensor within_capacity(Context& ctx, const Tensor& chosen, std::int64_t experts,
                                       std::int64_t capacity) const override;
  [[nodiscard]] bool counts_losses() const override { return setup_.first; }
  [[nodiscard]] bool adds_loss_gradient() const override { return setup_.rows != RouterRows::kAll || setup_.tp_rank == 0; }

 private:
  Setup setup_;
};

}  // namespace ref5d::expert_parallel
