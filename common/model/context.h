// What every module is handed: how to compute, on what, and where weight gradients and observations go.
#pragma once

#include <any>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/kernels/attention.h"
#include "common/kernels/cross_entropy.h"
#include "common/kernels/dropout.h"
#include "common/kernels/gemm.h"
#include "common/kernels/rope.h"
#include "common/tensor/tensor.h"

namespace ref5d {

// Which tokens the rows of the residual stream are, int32 [R] each: the global sample, the place in it (by these two dropout
// draws its masks), and the position that a learned embedding looks up (order - start). All T tokens, unless sequence
// parallelism scatters the rows: then those that are here.
struct ResidualRows {
  Tensor sample, order, position;
  // For routers alone: the place in the whole micro-batch of the replica, whatever of it is here, and which of the sequences
  // whose load is balanced the token is of (BalancedSequences), -1 for padding.
  Tensor place, sequence;
  [[nodiscard]] ResidualRows part(std::int64_t begin, std::int64_t end) const;
};

// The sequences of a replica's micro-batch whose load a router keeps even, D of them, wherever their tokens are: the
// micro-batch as one, or its documents (AuxKind). Padding is in none.
struct BalancedSequences {
  Tensor lengths;               // fp64 [D]: tokens
  std::int64_t tokens = 0;      // in all of them
  std::int64_t all_tokens = 0;  // of the micro-batch, with padding
};

inline ResidualRows ResidualRows::part(std::int64_t begin, std::int64_t end) const {
  const auto rows = [&](const Tensor& t) { return t ? t.rows(begin, end) : t; };
  return {rows(sample), rows(order), rows(position), rows(place), rows(sequence)};
}

// The tokens of one micro-batch, on the device: T = B * S rows, all int32.
struct MicroBatch {
  std::int64_t batch = 0, seq = 0;
  Tensor tokens, labels;  // [T]; labels -100 where nothing is predicted
  Tensor order, start;    // [T]; see attention.h
  ResidualRows residual;
  ResidualRows rows;          // of all T tokens, whether or not the residual stream's are scattered
  BalancedSequences balance;  // of a model with experts
  AttentionTokens attention;
  std::any attention_plan;         // what an AttentionCore that takes LocalAttention's place must know of other ranks' tokens
  RopeTable rope;                  // undefined with learned positions
  std::int64_t visible_pairs = 0;  // exact attention work of the micro-batch
  double loss_scale = 0;           // 1 / valid labels of the global batch: the one division
  double aux_loss_scale = 0;       // of auxiliary losses: 1 / micro-batches of the global batch, of all replicas together
  [[nodiscard]] std::int64_t token_count() const { return batch * seq; }
};

// What forward keeps for backward: a stack that belongs to one (micro-batch, chunk). Forward pushes, backward pops, so backward
// reads as forward upwards. Tags are checked. Tensors are reference-counted: several entries may share one.
class Saved {
 public:
  template <typename T>
  void push(const char* tag, T value) {
    entries_.emplace_back(tag, std::move(value));
  }
  template <typename T = Tensor>
  [[nodiscard]] T pop(const char* tag) {
    if (entries_.empty() || std::string_view(entries_.back().first) != tag) {
      throw std::logic_error(std::string("backward pops ") + tag + ", but forward pushed " +
                             (entries_.empty() ? "nothing" : entries_.back().first));
    }
    T value = std::any_cast<T>(std::move(entries_.back().second));
    entries_.pop_back();
    return value;
  }
  [[nodiscard]] bool empty() const { return entries_.empty(); }

 private:
  std::vector<std::pair<const char*, std::any>> entries_;
};

// Weight-gradient work, as closures that own their x and dy. Nobody upstream waits for a weight gradient, so it can be computed
// at once or much later (zero bubble).
class WeightGrads {
 public:
  using Work = std::function<void()>;
  // `keeps` are the tensors the work needs; deferred ones are counted in a ledger category of their own.
  void add(Work work, std::initializer_list<Tensor> keeps) {
    if (deferred_) {
      for (const Tensor& t : keeps) t.set_category(MemoryCategory::kDeferredWeightGradients);
    }
    queue_.push_back({unit_, std::move(work)});
  }
  // Work that is added from now on is of this unit of the model.
  void begin_unit(std::int64_t unit) { unit_ = unit; }
  // A module says: now is a good moment (the critical path has what it needs). Runs the queue unless deferred.
  void run_ready() {
    if (!deferred_) run_all();
  }
  // before_unit, if given, is called ahead of each unit's work.
  void run_all(const std::function<void(std::int64_t unit)>& before_unit = {}) {
    std::vector<Entry> queue = std::move(queue_);
    queue_.clear();
    std::int64_t unit = -1;
    for (Entry& entry : queue) {
      if (before_unit && entry.unit != unit) before_unit(entry.unit);
      unit = entry.unit;
      entry.work();
      entry.work = {};  // with what it owns
    }
  }
  // Takes over the other's work, each piece between the two calls.
  void take(WeightGrads& other, const std::function<void()>& before, const std::function<void()>& after) {
    for (Entry& entry : other.queue_) {
      queue_.push_back({unit_, [before, after, work = std::move(entry.work)] {
                          before();
                          work();
                          after();
                        }});
    }
    other.queue_.clear();
  }
  void defer(bool deferred) { deferred_ = deferred; }
  [[nodiscard]] bool deferred() const { return deferred_; }
  [[nodiscard]] bool empty() const { return queue_.empty(); }

 private:
  struct Entry {
    std::int64_t unit;
    Work work;
  };
  bool deferred_ = false;
  std::int64_t unit_ = 0;
  std::vector<Entry> queue_;
};

// Sees tensors as they are computed: for dumps and for tests. Names are those of a dump file: hidden/I, logits, sub/I/q, ...
class Probe {
 public:
  virtual ~Probe() = default;
  virtual void see(const std::string& name, const Tensor& tensor, Stream& stream) = 0;
  [[nodiscard]] virtual bool wants_sublayers() const = 0;
};

enum class Recompute { kNone, kFull, kSelective };

class RouteLog;

// All of a context but its stream.
struct ContextFields {
  Dtype dtype = Dtype::kFp32;
  GemmKind gemm = GemmKind::kBlas;
  AttentionKind attention = AttentionKind::kFlash;
  Recompute recompute = Recompute::kNone;
  double dropout = 0;
  std::uint64_t dropout_seed = 0;
  std::uint32_t step = 0;
  bool fused = true;  // false: SwiGLU, RMSNorm and cross-entropy step by step, for comparison

  const MicroBatch* batch = nullptr;
  // fp64 [1] each: the sum of cross-entropy over valid labels, not yet scaled, and the sum of the micro-batches' auxiliary
  // losses, each times its aux_loss_scale (a router's; the dense model has none).
  Tensor loss_sum, aux_loss_sum;
  // fp64 [L, 3 E] of a model with experts: for each layer and expert the choices of the tokens that were here in this step, the
  // sum of their probabilities, both without padding, and the rows that were sent there: all choices that were not dropped.
  Tensor router_load;
  RouteLog* routes = nullptr;  // sees, or replays, every choice
  WeightGrads* weight_grads = nullptr;
  Probe* probe = nullptr;
  bool recomputing = false;          // forward runs a second time: nothing is observed
  std::uint32_t redraw_dropout = 0;  // a fault to show (pitfall P27): recomputation draws another mask
};

struct Context : ContextFields {
  explicit Context(Stream& s) : stream(s) {}
  // The same on another stream.
  Context(const Context& other, Stream& s) : ContextFields(other), stream(s) {}

  Stream& stream;

  [[nodiscard]] Tensor activation(Shape shape) const {
    return Tensor::empty(std::move(shape), dtype, MemoryCategory::kActivations, stream);
  }
  [[nodiscard]] Tensor integers(Shape shape) const {
    return Tensor::empty(std::move(shape), Dtype::kInt32, MemoryCategory::kActivations, stream);
  }
  [[nodiscard]] Tensor statistic(Shape shape) const {
    return Tensor::empty(std::move(shape), accumulator_of(dtype), MemoryCategory::kActivations, stream);
  }
  // Adds the sum of loss [n], which the caller has scaled, to the auxiliary loss. Its gradient is the caller's to add.
  void add_aux_loss(const Tensor& loss) const {
    if (!recomputing) add_loss(stream, aux_loss_sum, loss);
  }
  void see(const std::string& name, const Tensor& t) const {
    if (probe != nullptr && !recomputing) probe->see(name, t, stream);
  }
  // Inputs and outputs of a sublayer (kind "sub") and their gradients ("sub_grad").
  void see_sub(const char* kind, std::int64_t layer, const char* what, const Tensor& t) const {
    if (probe != nullptr && !recomputing && probe->wants_sublayers())
      probe->see(std::string(kind) + "/" + std::to_string(layer) + "/" + what, t, stream);
  }
};

}  // namespace ref5d
