#include "05_pipeline/runtime.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "05_pipeline/micro_batches.h"
#include "common/comm/world.h"
#include "common/device/device.h"
#include "common/kernels/elementwise.h"
#include "common/model/unit_pass.h"

namespace ref5d::pipeline {

// One step: the schedule, once or several times over.
class Pipeline::Step {
 public:
  Step(Pipeline& pipeline, Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& share, std::int64_t micro_batch,
       data_parallel::Strategy& strategy)
      : p_(pipeline), gpt_(gpt), ctx_(ctx), loader_(loader), share_(share), micro_batch_(micro_batch), strategy_(strategy) {}

  // The schedule over the share's micro-batches from number `first` on.
  void run_schedule(std::int64_t first) {
    const std::vector<Cell>& cells = p_.plan_->schedule.ranks[index(p_.rank_)];
    const std::vector<Exchange>& exchanges = p_.plan_->exchanges[index(p_.rank_)];
    batches_.emplace(cells, loader_, share_, micro_batch_, first);
    rows_ = 0;
    if (p_.options_.faults.mean_per_micro_batch) batches_->divide_each();
    auto next = exchanges.begin();
    const auto exchange_before = [&](std::size_t cell) {
      for (; next != exchanges.end() && next->before_cell <= cell; ++next) exchange(*next);
    };
    for (std::size_t i = 0; i < cells.size(); ++i) {
      exchange_before(i);
      p_.records_.begin_cell();
      compute(cells[i], i);
      p_.links_.end_of_cell();
      p_.records_.end_cell(ctx_.stream);
    }
    exchange_before(cells.size());
    p_.links_.end_of_run();
    if (!works_.empty()) throw std::logic_error("a run of the schedule left work undone");
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  // What is kept of a micro-batch in a stage, from its forward to its last backward.
  struct Work {
    explicit Work(const Context& base) : ctx(base) {}
    Context ctx;
    Saved saved;
    WeightGrads weight_grads;
    std::optional<NotingProbe> probe;
  };

  [[nodiscard]] const Units& units(int stage) const { return p_.plan_->units[index(stage)]; }
  [[nodiscard]] bool is_last(int stage) const { return stage + 1 == p_.plan_->schedule.stages; }

  void exchange(const Exchange& e) {
    // All boundaries are alike: the rows of the residual stream that this rank has of a micro-batch.
    const std::int64_t rows = boundary_rows();
    p_.links_.exchange(e, {rows, gpt_.config().hidden}, ctx_.dtype);
  }
  std::int64_t boundary_rows() {
    if (rows_ == 0) {
      const Cell& first = p_.plan_->schedule.ranks[index(p_.rank_)].front();
      rows_ = batches_->take(first.operation.micro_batch).residual.sample.numel();
    }
    return rows_;
  }

  void compute(const Cell& cell, std::size_t number) {
    cell_ = &cell;
    if (cell.beside) return interleave(cell.operation, *cell.beside, number);
    const Operation& o = cell.operation;
    switch (o.pass) {
      case Pass::kForward: {
        ForwardPass pass = begin_forward(o, number);
        while (!pass.done()) pass.step();
        end_forward(o, pass, number);
        break;
      }
      case Pass::kBackward:
      case Pass::kInput: {
        begin_weights(o);
        BackwardPass pass = begin_backward(o, number);
        while (!pass.done()) pass.step();
        end_backward(o, pass, number);
        end_weights(o);
        break;
      }
      case Pass::kWeight:
        p_.records_.inputs_have_come(ctx_.stream, *cell_);
        begin_weights(o);
        if (p_.options_.faults.weights_after_reduction && done_[o.stage] + 1 == contributions()) {
          run_late(o);
        } else {
          run_weight_gradients(gpt_, work(o).weight_grads);
        }
        end_weights(o);
        works_.erase({o.stage, o.micro_batch});
        break;
    }
    batches_->done(o.micro_batch);
  }

  // The phases of the two take turns, so that what one communicates (between experts, say) travels while the other computes.
  void interleave(const Operation& f, const Operation& b, std::size_t number) {
    begin_weights(b);
    ForwardPass forward = begin_forward(f, number);
    BackwardPass backward = begin_backward(b, number);
    while (!forward.done() || !backward.done()) {
      if (!backward.done()) backward.step();
      if (!forward.done()) forward.step();
    }
    end_backward(b, backward, number);
    end_weights(b);
    end_forward(f, forward, number);
    batches_->done(f.micro_batch);
    batches_->done(b.micro_batch);
  }

  Work& work(const Operation& o) { return *works_.at({o.stage, o.micro_batch}); }

  ForwardPass begin_forward(const Operation& o, std::size_t number) {
    auto& w = works_[{o.stage, o.micro_batch}];
    w = std::make_unique<Work>(ctx_);
    w->ctx.batch = &batches_->take(o.micro_batch);
    w->ctx.weight_grads = &w->weight_grads;
    if (ctx_.probe != nullptr) {
      w->probe.emplace(*ctx_.probe, p_.seen_, batches_->number(o.micro_batch));
      w->ctx.probe = &*w->probe;
    }
    const Tensor input = o.stage == 0 ? Tensor() : p_.links_.take({o.stage - 1, Pass::kForward, o.micro_batch}, number);
    p_.records_.inputs_have_come(ctx_.stream, *cell_);
    return {gpt_, w->ctx, input, w->saved, units(o.stage)};
  }
  void end_forward(const Operation& o, const ForwardPass& pass, std::size_t number) {
    if (!is_last(o.stage)) p_.links_.put(o, pass.result(), number);
  }

  BackwardPass begin_backward(const Operation& o, std::size_t number) {
    Work& w = work(o);
    w.weight_grads.defer(o.pass == Pass::kInput);
    const Tensor doutput = is_last(o.stage) ? Tensor() : p_.links_.take({o.stage + 1, Pass::kBackward, o.micro_batch}, number);
    p_.records_.inputs_have_come(ctx_.stream, *cell_);
    return {gpt_, w.ctx, doutput, w.saved, units(o.stage)};
  }
  void end_backward(const Operation& o, const BackwardPass& pass, std::size_t number) {
    if (o.stage > 0) p_.links_.put(o, pass.result(), number);
    if (!work(o).saved.empty()) throw std::logic_error("the backward of " + to_text(o) + " left something that forward kept");
    if (o.pass == Pass::kBackward) works_.erase({o.stage, o.micro_batch});
  }

  // A fault: the reduction goes without this work, which is added when it is over.
  void run_late(const Operation& o) {
    std::vector<std::pair<Tensor*, Tensor>> replaced;
    for (std::int64_t unit = units(o.stage).begin; unit < units(o.stage).end; ++unit) {
      for (const auto& p : gpt_.parameters_of(unit)) {
        Tensor& sum = p->gradient_sum ? p->gradient_sum : p->gradient;
        replaced.emplace_back(&sum, sum);
        sum = Tensor::zeros(sum.shape(), sum.dtype(), MemoryCategory::kGradients, ctx_.stream);
        p_.late_.emplace_back(p.get(), sum);
      }
    }
    run_weight_gradients(gpt_, work(o).weight_grads);
    for (auto& [sum, tensor] : replaced) *sum = tensor;
  }
  [[nodiscard]] std::int64_t contributions() const { return p_.contributions(count_micro_batches(share_, micro_batch_)); }

  // The strategy hears of what adds to gradients: whole backwards, and weights' halves.
  void begin_weights(const Operation& o) {
    if (o.pass != Pass::kInput) strategy_.begin_micro_batch(done_[o.stage], units(o.stage));
  }
  void end_weights(const Operation& o) {
    if (o.pass != Pass::kInput) strategy_.end_micro_batch(done_[o.stage]++);
  }

  Pipeline& p_;
  Gpt& gpt_;
  Context& ctx_;
  Loader& loader_;
  const GlobalBatch& share_;
  std::int64_t micro_batch_;
  data_parallel::Strategy& strategy_;
  std::optional<MicroBatches> batches_;
  std::map<std::pair<int, int>, std::unique_ptr<Work>> works_;  // by stage and micro-batch
  std::map<int, std::int64_t> done_;                            // micro-batches whose weight gradients are done, by stage
  std::int64_t rows_ = 0;
  const Cell* cell_ = nullptr;  // that is being enqueued
};

Pipeline::Pipeline(std::shared_ptr<const Plan> plan, Mesh& mesh, const PipelineOptions& options)
    : plan_(std::move(plan)),
      mesh_(mesh),
      options_(options),
      rank_(mesh["pp"].rank()),
      links_(mesh["pp"], device().compute(), options.links) {}

void Pipeline::join_ends() {
  const int a = plan_->assignment.holders_of(0).front(), b = plan_->assignment.holders_of(plan_->schedule.stages - 1).front();
  if (plan_->ends_apart() && (rank_ == a || rank_ == b)) ends_ = &mesh_.pair("pp", std::min(a, b), std::max(a, b));
}

std::int64_t Pipeline::contributions(std::int64_t micro_batches) const {
  return plan_->assignment.copies() ? micro_batches / 2 : micro_batches;
}

void Pipeline::run(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& share, std::int64_t micro_batch,
                   data_parallel::Strategy& strategy) {
  micro_batches_ = count_micro_batches(share, micro_batch);
  const std::int64_t each = plan_->schedule.micro_batches;
  if (micro_batches_ % each != 0) throw std::logic_error("a share of the batch is no multiple of a schedule's micro-batches");
  if (ctx.probe != nullptr) seen_.clear();
  records_.begin_step();
  Step step(*this, gpt, ctx, loader, share, micro_batch, strategy);
  for (std::int64_t first = 0; first < micro_batches_; first += each) {
    step.run_schedule(first);
    records_.end_run();
  }
  sum_tied(gpt, ctx);
  if (device().profiler().on()) records_.hand_over(ctx.stream);
}

// A tied weight has one end in the first stage, where it looks tokens up, and one in the last, where it makes logits. Its
// gradient is the sum of both, formed before data parallelism reduces it: shards of the two stages would not fit together
// (pitfall P44). Both then make the same update, and stay equal.
void Pipeline::sum_tied(Gpt& gpt, Context& ctx) {
  for (Parameter* p : gpt.parameters()) {
    if (!p->summed_with_other_rank) continue;
    const TrafficLedger::Phase phase(world().traffic(), "tied weights");
    order(ctx.stream, links_.stream());
    if (!options_.faults.tied_unsummed) ends_->all_reduce(links_.stream(), p->final_gradient());
    p->added_other_rank(links_.stream());
  }
}

void Pipeline::add_late(Stream& stream) {
  for (const auto& [p, late] : late_) scaled_add(stream, p->final_gradient(), late, 1.0);
  late_.clear();
}

std::vector<Segment> Pipeline::rows_seen(const std::string& name, const std::vector<Segment>& rows) const {
  const auto seen = seen_.find(name);
  return pipeline::rows_seen(seen == seen_.end() ? std::vector<std::int64_t>() : seen->second, micro_batches_, rows);
}

}  // namespace ref5d::pipeline
