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
class NaiveGradients : public Gradients {
 public:
  explicit NaiveGradients(const Setup& setup) : setup_(setup) {
    for (Parameter* p : setup.gpt.parameters())
      p->on_final.emplace_back([this](Parameter&, Stream& stream) {
        order(stream, setup_.compute);
        return &setup_.compute;
      });
  }
  void begin_step(std::int64_t micro_batches) override {
    for (Parameter* p : setup_.gpt.parameters()) p->begin_step(setup_.compute, micro_batches);
  }
  void end_step() override {
    for (Parameter* p : setup_.gpt.parameters())
      if (p->uses > 0)
        all_reduce_gradient(setup_.ranks_of(p->expert).shard, setup_.compute, p->final_gradient(), setup_.reduce_dtype());
  }

 private:
  Setup setup_;
};

}  // namespace

std::unique_ptr<Strategy> make_strategy(const Setup& setup) {
  const std::string& kind = setup.options.kind;
  using Result = GradientBuckets::Result;
  if (kind == "naive") return std::make_unique<Strategy>(std::make_unique<NaiveGradients>(setup), nullptr, false);
  if (kind == "ddp")
    return std::make_unique<Strategy>(std::make_unique<GradientBuckets>(setup, Result::kEverywhere), nullptr, false);

  // ZeRO-1: as DDP, but each rank updates its shard of the weights only, with the moments and masters of that shard alone, and
  // then gathers the others'. The reduce-scatter and this gather are the two halves of DDP's all-reduce. (With whole gradients
  // kept, ZeRO-2 differs from it in nothing.)
  if (kind == "zero1" || (kind == "zero2" && setup.options.keep_full_gradients)) {
    auto gradients = std::make_unique<GradientBuckets>(setup, Result::kOwnShard);
    auto weights = std::make_unique<FullWeights>(setup, gradients->buckets());
    return std::make_unique<Strategy>(std::move(gradients), std::move(weights), true);
  }

  // ZeRO-2: of the gradients, too, only the own shard is kept. ZeRO-3, and with replicas HSDP: of the weights as well.
  auto gradients = std::make_unique<GradientShards>(setup);
  auto& hooks = setup.gpt.hooks;
  std::unique_ptr<Weights> weights;
  if (kind == "zero2") {
    weights = std::make_unique<FullWeights>(setup, gradients->units());
  } else {
    auto shards = std::make_unique<WeightShards>(setup, gradients->units());
    hooks.push_back(shards.get());
    weights = std::move(shards);
  }
  hooks.push_back(gradients.get());
  return std::make_unique<Strategy>(std::move(gradients), std::move(weights), true);
}

}  // namespace ref5d::data_parallel
