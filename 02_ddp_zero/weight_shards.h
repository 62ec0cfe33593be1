// Weights of which only the own shard is kept: ZeRO-3 and HSDP. A unit's whole weights are gathered before its forward and
// again before its backward, and freed right after; the next unit's travel while this one computes.
#pragma once

#include <vector>

#include "02_ddp_zero/flat_group.h"
#include "02_ddp_zero/strategy.h"

namespace ref5d::data_parallel {

class WeightShards : public Weights, public UnitHooks {
 public:
  WeightShards(const Setup& setup, const FlatGroups& units);
  void shard(Parameter& p) override;

  void before_forward(std::int64_t unit) override { bring(unit, unit + 1, "forward"); }
  void after_forward(std::int64_t unit) override { release(unit, unit + 1); }
  void before_backward(std::int64_t unit) override { bring(unit, unit - 1, "backward"); }
  void after_backward(std::int64_t unit) override { release(unit, unit - 1); }

 private:
  using Groups = std::vector<std::size_t>;
  [[nodiscard]] const Groups& groups_of(std::int64_t unit) const;
  void bring(std::int64_t unit, std::int64_t next, const char* pass);
  void gather(std::size_t group, const char* pass);
  void release(std::int64_t unit, std::int64_t next);

  Setup setup_;
  FlatGroups units_;
  std::vector<Groups> of_model_unit_;
  std::vector<Tensor> shards_, masters_;
  std::vector<Tensor> whole_;    // while they are here
  std::vector<Event> gathered_;  // of whole_
  Stream comm_{"dp weights"};
};

}  // namespace ref5d::data_parallel
