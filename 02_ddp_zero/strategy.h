// How the ranks of a data-parallel axis share the work on parameters and gradients: the strategies' common face.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "02_ddp_zero/flat_group.h"
#include "common/comm/communicator.h"
#include "common/comm/world.h"
#include "common/model/gpt.h"

namespace ref5d::data_parallel {

// Mistakes to show (--sabotage).
struct Faults {
  bool skip_full_bucket = false;       // a bucket that one parameter fills is never reduced (P07)
  bool no_stream_wait = false;         // buckets are reduced without waiting for backward (P09)
  bool reduce_before_summing = false;  // hsdp: all-reduces the running sum after every micro-batch (P06)
  bool last_micro_batch_only = false;  // zero2, zero3: earlier micro-batches' gradients are dropped unreduced (P10)
  bool norm_of_own_shard = false;      // the gradient norm leaves out what other ranks hold (P20)
  bool norm_counts_replicas = false;   // and here counts every replica (P20)
  bool no_weight_gather = false;       // zero1, zero2: others' updated weights never arrive
  bool stale_weights = false;          // zero3: gathered weights are kept over the update
  bool local_label_count = false;      // each replica divides by its own labels, then the ranks average (P02)
  bool drift = false;                  // the last rank's weights are changed a little after each update (P12)
  bool without_cp = false;             // gradients are summed over dp alone, though cp's ranks have other tokens (P04)
  bool average_again = false;          // the sum over ranks is divided by their number, on top of the loss's division (T1)

  bool experts_left_out_of_norm = false;  // the norm does not sum what other ranks' experts have (P19)
  // experts' gradients are multiplied by this after their reduction: their number of ranks is divided out or in again (P47)
  double expert_gradient_factor = 1;
};

struct StrategyOptions {
  std::string kind = "ddp";             // naive | ddp | zero1 | zero2 | zero3 | hsdp
  double bucket_bytes = 0.25 * 0x1p20;  // ddp, zero1
  bool overlap = true;                  // ddp, zero1: reduce during backward; false: after it
  bool sync_every_micro_batch = false;  // ddp, zero1: no no_sync
  bool keep_full_gradients = false;     // zero2: sums locally, reduces once
  bool all_reduce_gradients = false;    // zero1: all-reduces what a reduce-scatter would do for
  bool whole_model_unit = false;        // zero2, zero3, hsdp
  bool prefetch = true;                 // zero3, hsdp: gathers the next unit's weights during this one's work
  Dtype reduce_dtype = Dtype::kFp32;    // of gradients of bf16 weights
  double padding = 0;                   // what the padding of flat arrays holds
  Faults faults;
};

[[nodiscard]] std::vector<std::string> strategy_names();

// The ranks that share the state of a kind of parameters.
struct StateRanks {
  Communicator& shard;                // cut it between them
  Communicator* replicate = nullptr;  // hold the same shard (of hsdp; null where there are none)
  [[nodiscard]] int size() const { return shard.size() * (replicate == nullptr ? 1 : replicate->size()); }
};

// What a strategy works with.
struct Setup {
  Gpt& gpt;
  Stream& compute;
  StateRanks ordinary;
  StorageOptions storage;
  StrategyOptions options;
  StateRanks experts = ordinary;  // fewer where experts are on several ranks

  [[nodiscard]] const StateRanks& ranks_of(bool expert) const { return expert ? experts : ordinary; }
  [[nodiscard]] const StateRanks& ranks_of(const FlatGroup& group) const { return ranks_of(group.expert); }
  [[nodiscard]] ByKind shards() const { return {ordinary.shard.size(), experts.shard.size()}; }
  [[nodiscard]] ByKind shard_rank() const { return {ordinary.shard.rank(), experts.shard.rank()}; }
  // What faults multiply a reduced gradient by.
  [[nodiscard]] double planted_factor(bool expert) const {
    const double again = options.faults.average_again ? 1.0 / ranks_of(expert).size() : 1.0;
    return expert ? again * options.faults.expert_gradient_factor : again;
  }
  // The dtype in which gradients travel.
  [[nodiscard]] Dtype reduce_dtype() const { return storage.dtype == Dtype::kBf16 ? options.reduce_dtype : storage.dtype; }
  // The dtype in which a step's gradient is summed.
  [[nodiscard]] Dtype sum_dtype() const { return storage.fp32_gradient_sum ? accumulator_of(storage.dtype) : storage.dtype; }
  // The ledger's category of that sum.
  [[nodiscard]] MemoryCategory sum_category() const {
    return sum_dtype() == storage.dtype ? MemoryCategory::kGradients : MemoryCategory::kGradientAccumulation;
  }
};

// Where gradients are summed, over micro-batches and over ranks, and what a rank keeps of them. A step's calls, in their order.
class Gradients {
 public:
  virtual ~Gradients() = default;
  // A parameter has its storage: its gradient goes where this keeps it.
  virtual void shard(Parameter&) {}
  virtual void begin_step(std::int64_t micro_batches) = 0;
  // Around the weight gradients of micro-batch m, the m-th of these units: all of the model's, or a pipeline stage's.
  virtual void begin_micro_batch(std::int64_t /*m*/, Units /*units*/) {}
  virtual void end_micro_batch(std::int64_t /*m*/) {}
  // Afterwards gradients are final on the compute stream, in what each parameter's placement leaves to this rank.
  virtual void end_step() = 0;
};

// What a rank keeps of the weights.
class Weights {
 public:
  virtual ~Weights() = default;
  // A parameter has its storage: gives up what other ranks keep of its weight and its master.
  virtual void shard(Parameter&) = 0;
  // The optimizer has updated this rank's shard.
  virtual void after_update() {}
};

class Strategy {
 public:
  // weights null: whole on every rank, and updated by every rank. sharded: a rank holds a part of the reduced gradients only,
  // so that norms are sums over StateRanks::shard.
  Strategy(std::unique_ptr<Gradients> gradients, std::unique_ptr<Weights> weights, bool sharded)
      : gradients_(std::move(gradients)), weights_(std::move(weights)), sharded_(sharded) {}
  void shard(Parameter& p) {
    gradients_->shard(p);
    if (weights_) weights_->shard(p);
  }
  void begin_step(std::int64_t micro_batches) { gradients_->begin_step(micro_batches); }
  void begin_micro_batch(std::int64_t m, Units units = {}) { gradients_->begin_micro_batch(m, units); }
  void end_micro_batch(std::int64_t m) { gradients_->end_micro_batch(m); }
  void end_step() { gradients_->end_step(); }
  void after_update() {
    if (weights_) weights_->after_update();
  }
  [[nodiscard]] bool shards_gradients() const { return sharded_; }

 private:
  std::unique_ptr<Gradients> gradients_;
  std::unique_ptr<Weights> weights_;
  bool sharded_;
};

// Before the model has storage. Sets the placements.
[[nodiscard]] std::unique_ptr<Strategy> make_strategy(const Setup& setup);

// All-reduces a gradient, in the dtype of the reduction.
void all_reduce_gradient(Communicator& ranks, Stream& stream, const Tensor& gradient, Dtype reduce_dtype);
// shard [n / N] = the sum over ranks of its part of gradient [n], in the dtype of the reduction; gradient and shard may differ
// in dtype, and the shard may be the rank's own part of the gradient.
void reduce_scatter_gradient(Communicator& ranks, Stream& stream, const Tensor& shard, const Tensor& gradient,
                             Dtype reduce_dtype);

}  // namespace ref5d::data_parallel
