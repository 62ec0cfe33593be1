#include "02_ddp_zero/strategy.h"

#include <utility>

#include "02_ddp_zero/full_weights.h"
#include "02_ddp_zero/gradient_buckets.h"
#include "02_ddp_zero/gradient_shards.h"
#include "02_ddp_zero/weight_shards.h"
#include "common/kernels/elementwise.h"

namespace ref5d::data_parallel {

std::vector<std::string> strategy_names() { return {"naive", "ddp", "zero1", "zero2", "zero3", "hsdp"}; }

void all_reduce_gradient(Communicator& ranks, Stream& stream, const Tensor& gradient, Dtype reduce_dtype) {
  const TrafficLedger::Phase phase(world().traffic(), "gradients");
  if (ranks.size() == 1) reduce_dtype = gradient.dtype();  // nothing travels, so nothing is rounded
  if (gradient.dtype() == reduce_dtype) return ranks.all_reduce(stream, gradient);
  const Tensor wire = Tensor::empty(gradient.shape(), reduce_dtype, MemoryCategory::kCommunication, stream);
  convert(stream, wire, gradient);
  ranks.all_reduce(stream, wire);
  convert(stream, gradient, wire);
}

void reduce_scatter_gradient(Communicator& ranks, Stream& stream, const Tensor& shard, const Tensor& gradient,
                             Dtype reduce_dtype) {
  const TrafficLedger::Phase phase(world().traffic(), "gradients");
  if (ranks.size() == 1) reduce_dtype = gradient.dtype();
  const auto in_reduce_dtype = [&](const Tensor& t) {
    return t.dtype() == reduce_dtype ? t : Tensor::empty(t.shape(), reduce_dtype, MemoryCategory::kCommunication, stream);
  };
  const Tensor wire = in_reduce_dtype(gradient), sum = in_reduce_dtype(shard);
  if (gradient.dtype() != reduce_dtype) convert(stream, wire, gradient);
  ranks.reduce_scatter(stream, sum, wire);
  if (shard.dtype() != reduce_dtype) convert(stream, shard, sum);
}

namespace {

// All-reduces every gradient once backward is over: nothing computes meanwhile, and each tensor pays a collective's fixed cost.
class Naive : public Strategy {
 public:
  explicit Naive(const Setup& setup) : setup_(setup) {}
  void begin_step(std::int64_t micro_batches) override {
    for (Parameter* p : setup_.gpt.parameters()) p->begin_step(setup_.compute, micro_batches);
  }
  void end_step() override {
    for (Parameter* p : setup_.gpt.parameters())
      all_reduce_gradient(setup_.shard, setup_.compute, p->final_gradient(), setup_.reduce_dtype());
  }

 private:
  Setup setup_;
};

// Gradients in buckets, whole weights everywhere.
class Ddp : public Strategy {
 public:
  explicit Ddp(const Setup& setup) : gradients_(setup, GradientBuckets::Result::kEverywhere) {}
  void shard(Parameter& p) override { gradients_.shard(p); }
  void begin_step(std::int64_t micro_batches) override { gradients_.begin_step(micro_batches); }
  void begin_micro_batch(std::int64_t m) override { gradients_.begin_micro_batch(m); }
  void end_micro_batch(std::int64_t m) override { gradients_.end_micro_batch(m); }
  void end_step() override { gradients_.end_step(); }

 private:
  GradientBuckets gradients_;
};

// ZeRO-1: as DDP, but each rank updates its shard of the weights only, with the moments and masters of that shard alone, and
// then gathers the others'. The reduce-scatter and this gather are the two halves of DDP's all-reduce.
class Zero1 : public Strategy {
 public:
  explicit Zero1(const Setup& setup)
      : gradients_(setup, GradientBuckets::Result::kOwnShard), weights_(setup, gradients_.buckets()) {}
  void shard(Parameter& p) override {
    gradients_.shard(p);
    weights_.shard(p);
  }
  void begin_step(std::int64_t micro_batches) override { gradients_.begin_step(micro_batches); }
  void begin_micro_batch(std::int64_t m) override { gradients_.begin_micro_batch(m); }
  void end_micro_batch(std::int64_t m) override { gradients_.end_micro_batch(m); }
  void end_step() override { gradients_.end_step(); }
  void after_update() override { weights_.gather(); }
  [[nodiscard]] bool shards_gradients() const override { return true; }

 private:
  GradientBuckets gradients_;
  FullWeights weights_;
};

// ZeRO-2: of the gradients, too, only the own shard is kept.
class Zero2 : public Strategy {
 public:
  explicit Zero2(const Setup& setup) : gradients_(setup), weights_(setup, gradients_.units()) {
    setup.gpt.hooks.push_back(&gradients_);
  }
  void shard(Parameter& p) override {
    gradients_.shard(p);
    weights_.shard(p);
  }
  void begin_step(std::int64_t micro_batches) override { gradients_.begin_step(micro_batches); }
  void begin_micro_batch(std::int64_t m) override { gradients_.begin_micro_batch(m); }
  void end_micro_batch(std::int64_t) override { gradients_.end_micro_batch(); }
  void end_step() override { gradients_.end_step(); }
  void after_update() override { weights_.gather(); }
  [[nodiscard]] bool shards_gradients() const override { return true; }

 private:
  GradientShards gradients_;
  FullWeights weights_;
};

// ZeRO-3, and with groups of replicas HSDP: the weights are gathered unit by unit while they are needed.
class Zero3 : public Strategy {
 public:
  explicit Zero3(const Setup& setup) : gradients_(setup), weights_(setup, gradients_.units()) {
    setup.gpt.hooks.push_back(&weights_);
    setup.gpt.hooks.push_back(&gradients_);
  }
  void shard(Parameter& p) override {
    gradients_.shard(p);
    weights_.shard(p);
  }
  void begin_step(std::int64_t micro_batches) override { gradients_.begin_step(micro_batches); }
  void begin_micro_batch(std::int64_t m) override { gradients_.begin_micro_batch(m); }
  void end_micro_batch(std::int64_t) override { gradients_.end_micro_batch(); }
  void end_step() override { gradients_.end_step(); }
  [[nodiscard]] bool shards_gradients() const override { return true; }

 private:
  GradientShards gradients_;
  WeightShards weights_;
};

}  // namespace

std::unique_ptr<Strategy> make_strategy(const Setup& setup) {
  const std::string& kind = setup.options.kind;
  if (kind == "naive") return std::make_unique<Naive>(setup);
  if (kind == "ddp") return std::make_unique<Ddp>(setup);
  // With whole gradients kept, ZeRO-2 differs from ZeRO-1 in nothing.
  if (kind == "zero1" || (kind == "zero2" && setup.options.keep_full_gradients)) return std::make_unique<Zero1>(setup);
  if (kind == "zero2") return std::make_unique<Zero2>(setup);
  return std::make_unique<Zero3>(setup);
}

}  // namespace ref5d::data_parallel
