// Whole weights on every rank, of which each rank updates its shard: ZeRO-1 and ZeRO-2.
#pragma once

#include <vector>

#include "02_ddp_zero/flat_group.h"
#include "02_ddp_zero/strategy.h"

namespace ref5d::data_parallel {

class FullWeights : public Weights {
 public:
  FullWeights(const Setup& setup, const FlatGroups& groups);
  void shard(Parameter& p) override;
  // Everyone gets everyone's shards.
  void after_update() override;

 private:
  Setup setup_;
  FlatGroups groups_;
  std::vector<Tensor> flat_, masters_;
  Stream comm_{"dp weights"};
};

}  // namespace ref5d::data_parallel
