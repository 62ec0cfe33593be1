// Whole gradients in flat buckets, each reduced as soon as its last gradient is final, while backward goes on.
#pragma once

#include <vector>

#include "02_ddp_zero/flat_group.h"
#include "02_ddp_zero/strategy.h"

namespace ref5d::data_parallel {

class GradientBuckets : public Gradients {
 public:
  // Where the sum over the ranks ends up: on every rank (all-reduce), or each rank's shard on that rank (reduce-scatter).
  enum class Result { kEverywhere, kOwnShard };
  GradientBuckets(const Setup& setup, Result result);

  // In the order in which backward finishes them.
  [[nodiscard]] const FlatGroups& buckets() const { return buckets_; }
  void shard(Parameter& p) override;
  void begin_step(std::int64_t micro_batches) override;
  void begin_micro_batch(std::int64_t m, Units units) override;
  void end_micro_batch(std::int64_t m) override;
  void end_step() override;

 private:
  void expect_contributions(std::int64_t micro_batches, bool zero);
  void became_final(const Parameter& p, Stream& stream);
  void reduce(std::size_t bucket);
  void count_once(std::size_t bucket);

  Setup setup_;
  Result result_;
  FlatGroups buckets_;
  std::vector<Tensor> flat_;          // a bucket's gradients
  std::vector<std::size_t> missing_;  // gradients of a bucket that are not final
  std::int64_t micro_batches_ = 0;
  Stream comm_{"dp"};
};

}  // namespace ref5d::data_parallel
