// Gradients of which only the own shard is kept: ZeRO-2, ZeRO-3, HSDP.
//
// Backward of a unit adds into whole gradients that live only as long: when the unit's last one is final they are
// reduce-scattered, what arrives is added to the shard's sum, and the whole ones go. So every micro-batch costs a
// reduce-scatter: there is nowhere to keep its gradients for later.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "02_ddp_zero/flat_group.h"
#include "02_ddp_zero/strategy.h"

namespace ref5d::data_parallel {

class GradientShards : public Gradients, public UnitHooks {
 public:
  explicit GradientShards(const Setup& setup);
  // What is gathered, or reduced, at a time.
  [[nodiscard]] const FlatGroups& units() const { return units_; }

  void shard(Parameter& p) override;
  void begin_step(std::int64_t micro_batches) override;
  void begin_micro_batch(std::int64_t m, Units units) override;
  void before_weight_gradients(std::int64_t unit) override;
  void end_micro_batch(std::int64_t m) override;
  void end_step() override;

 private:
  // Whether the group is a weight of two pipeline stages: its gradient stays whole until the step's passes are over, and is
  // reduced once.
  [[nodiscard]] bool across_stages(std::size_t unit) const { return units_[unit].members.front().parameter->across_stages; }
  [[nodiscard]] const StateRanks& ranks_of(std::size_t unit) const { return setup_.ranks_of(units_[unit]); }
  void keep_whole(Parameter& p, std::size_t unit);
  void reduce_whole(std::size_t unit);
  void open(std::size_t unit);
  void became_final(Parameter& p, Stream& stream);
  void reduce(std::size_t unit);
  void drop_reduced(std::size_t but_for);
  [[nodiscard]] bool fused() const;

  struct Reducing {
    Tensor whole;
    Event done;
  };

  Setup setup_;
  FlatGroups units_;
  std::vector<std::vector<std::size_t>> of_model_unit_;  // the groups that a unit of the model uses
  std::vector<Tensor> sums_;                             // of this rank's shards, over micro-batches
  std::vector<Tensor> whole_;                            // while backward adds to them
  std::vector<std::size_t> missing_;                     // gradients that are not final
  struct Whole {
    Tensor gradient, gradient_sum;
  };
  std::map<std::size_t, Whole> kept_whole_;  // by group, those across stages
  std::deque<Reducing> reducing_;
  std::size_t opened_ = 1;  // groups that the last of the model's units opened
  std::int64_t micro_batches_ = 0, micro_batch_ = 0;
  Stream comm_{"dp"};
};

}  // namespace ref5d::data_parallel
