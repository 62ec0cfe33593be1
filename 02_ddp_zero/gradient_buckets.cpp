#include "02_ddp_zero/gradient_buckets.h"

#include <stdexcept>

#include "common/kernels/elementwise.h"

namespace ref5d::data_parallel {

GradientBuckets::GradientBuckets(const Setup& setup, Result result) : setup_(setup), result_(result) {
  const ByKind ranks = result == Result::kOwnShard ? setup.shards() : ByKind(1);
  buckets_ = make_buckets(setup.gpt, setup.options.bucket_bytes, dtype_size(setup.sum_dtype()), ranks);
  if (result == Result::kOwnShard) buckets_.cut(setup.shard_rank());
  flat_.resize(buckets_.size());
  missing_.resize(buckets_.size());
  for (Parameter* p : setup.gpt.parameters()) {
    // What other axes sum before would count again what an earlier reduction has left there.
    if (setup.options.sync_every_micro_batch && !p->on_final.empty())
      throw std::logic_error(p->name + " is summed over another axis, too; that cannot be reduced after every micro-batch");
    p->on_final.emplace_back([this](Parameter& q, Stream& stream) {
      became_final(q, stream);
      return &comm_;
    });
  }
}

// The gradient becomes a view of its bucket, so that nothing is copied before it is sent.
void GradientBuckets::shard(Parameter& p) {
  const auto [g, member] = buckets_.find(p);
  if (!flat_[g]) {
    flat_[g] = allocate_flat(buckets_[g].padded_numel(), buckets_[g].numel, setup_.options.padding, setup_.sum_dtype(),
                             setup_.sum_category(), setup_.compute);
  }
  (p.gradient_sum ? p.gradient_sum : p.gradient) = FlatGroup::whole_of(flat_[g], member);
}

void GradientBuckets::expect_contributions(std::int64_t micro_batches, bool zero) {
  for (std::size_t g = 0; g < buckets_.size(); ++g) missing_[g] = buckets_[g].used();
  for (Parameter* p : setup_.gpt.parameters()) p->begin_step(setup_.compute, micro_batches, zero);
}

// Gradients become final once, in the last micro-batch: PyTorch's no_sync for all others.
void GradientBuckets::begin_step(std::int64_t micro_batches) {
  micro_batches_ = micro_batches;
  if (!setup_.options.sync_every_micro_batch) expect_contributions(micro_batches, true);
}

void GradientBuckets::begin_micro_batch(std::int64_t m, Units) {
  if (setup_.options.sync_every_micro_batch) expect_contributions(1, m == 0);
}

void GradientBuckets::became_final(const Parameter& p, Stream& stream) {
  const std::size_t bucket = buckets_.find(p).group;
  if (!setup_.options.faults.no_stream_wait) order(stream, comm_);
  if (--missing_[bucket] == 0 && setup_.options.overlap) reduce(bucket);
}

void GradientBuckets::reduce(std::size_t bucket) {
  const FlatGroup& group = buckets_[bucket];
  const double capacity = setup_.options.bucket_bytes;
  const bool filled_by_one = group.members.size() == 1 &&
                             static_cast<double>(group.numel) * static_cast<double>(dtype_size(setup_.sum_dtype())) >= capacity;
  if (setup_.options.faults.skip_full_bucket && filled_by_one) return;
  Communicator& ranks = setup_.ranks_of(group).shard;
  Tensor flat = flat_[bucket];
  if (setup_.options.faults.no_stream_wait) {  // what is there at this moment, whatever backward has still to do
    flat = Tensor::empty(flat.shape(), flat.dtype(), MemoryCategory::kCommunication, comm_);
    copy_on_device(comm_, flat.raw(), flat_[bucket].raw(), flat.bytes());
  }
  if (result_ == Result::kEverywhere || setup_.options.all_reduce_gradients) {
    all_reduce_gradient(ranks, comm_, flat, setup_.reduce_dtype());
  } else {
    const Tensor own = group.shard_of(flat, ranks.rank());
    reduce_scatter_gradient(ranks, comm_, own, flat, setup_.reduce_dtype());
  }
  if (setup_.options.faults.no_stream_wait) copy_on_device(comm_, flat_[bucket].raw(), flat.raw(), flat.bytes());
  const double factor = setup_.planted_factor(group.expert);
  if (factor != 1) scale(comm_, flat_[bucket], factor);
}

// Further micro-batches are added to a sum that is already over all ranks. The next reduction must count it once: one rank
// keeps it, and for the others it begins at zero.
void GradientBuckets::count_once(std::size_t bucket) {
  const FlatGroup& group = buckets_[bucket];
  const Communicator& ranks = setup_.ranks_of(group).shard;
  const auto clear = [&](const Tensor& t) { fill_zero(comm_, t.raw(), t.bytes()); };
  if (result_ == Result::kEverywhere || setup_.options.all_reduce_gradients) {
    if (ranks.rank() != 0) clear(flat_[bucket]);
    return;
  }
  for (int r = 0; r < ranks.size(); ++r)  // every rank keeps its own shard
    if (r != ranks.rank()) clear(group.shard_of(flat_[bucket], r));
}

void GradientBuckets::end_micro_batch(std::int64_t m) {
  if (!setup_.options.sync_every_micro_batch) return;
  for (std::size_t g = 0; g < buckets_.size(); ++g) {
    if (!setup_.options.overlap) reduce(g);
    if (m + 1 < micro_batches_) count_once(g);
  }
  order(comm_, setup_.compute);
}

void GradientBuckets::end_step() {
  if (!setup_.options.overlap && !setup_.options.sync_every_micro_batch)
    for (std::size_t g = 0; g < buckets_.size(); ++g) reduce(g);
  order(comm_, setup_.compute);
}

}  // namespace ref5d::data_parallel
