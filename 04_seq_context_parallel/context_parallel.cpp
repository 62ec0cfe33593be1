#include "04_seq_context_parallel/context_parallel.h"

#include <numeric>
#include <stdexcept>

#include "04_seq_context_parallel/all_gather_attention.h"
#include "04_seq_context_parallel/ring_attention.h"
#include "04_seq_context_parallel/ulysses_attention.h"
#include "common/kernels/rope.h"
#include "common/tensor/ignore_label.h"

namespace ref5d::context_parallel {

namespace {

std::unique_ptr<AttentionCore> make_core(const std::shared_ptr<ContextAxis>& axis) {
  if (axis->options().kind == "allgather") return std::make_unique<AllGatherAttention>(axis);
  // Groups of one exchange nothing: what is left is the ring between them.
  if (axis->options().kind == "ulysses" && axis->group_size() > 1) return std::make_unique<UlyssesAttention>(axis);
  return std::make_unique<RingAttention>(axis);
}

// The part of a row that is here.
Row cut_row(const ContextAxis& axis, const Row& whole) {
  Row part = part_of(whole, axis.layout().of(axis.rank()));
  if (!axis.faults().labels_after_cut) return part;
  for (std::size_t i = 0; i < part.labels.size(); ++i)
    part.labels[i] = i + 1 < part.tokens.size() ? part.tokens[i + 1] : kIgnoreLabel;
  return part;
}

// A mistake to show: each rank's tokens have positions 0, 1, 2 ...
void count_own_positions(MicroBatch& b, const GptConfig& c, Dtype dtype, Stream& stream) {
  std::vector<double> positions;
  for (std::int64_t t = 0; t < b.token_count(); ++t) positions.push_back(static_cast<double>(t % b.seq));
  const Tensor own = Tensor::from_host(HostTensor::from_doubles(positions, {b.token_count()}, Dtype::kInt32), Dtype::kInt32,
                                       MemoryCategory::kWorkspace, stream);
  const Tensor zero = Tensor::zeros({b.token_count()}, Dtype::kInt32, MemoryCategory::kWorkspace, stream);
  b.residual.position = own;
  if (b.rope.cos) b.rope = make_rope_table(stream, own, zero, c.head_dim(), c.rope_theta, dtype);
}

std::vector<Row> as_one_document(std::span<const Row> rows) {
  std::vector<Row> all(rows.begin(), rows.end());
  for (Row& row : all) row.start.assign(row.start.size(), 0);
  return all;
}

void plan_micro_batch(const ContextAxis& axis, MicroBatch& b, std::span<const Row> whole, Stream& stream) {
  const std::vector<Row> one = axis.faults().ignore_documents ? as_one_document(whole) : std::vector<Row>();
  auto plan = std::make_shared<const AttentionPlan>(make_plan(axis, one.empty() ? whole : std::span<const Row>(one), stream));
  b.visible_pairs = 0;
  for (const KeyBlock& block : plan->blocks) b.visible_pairs += block.visible_pairs;
  b.attention_plan = std::move(plan);
}

// Which rows of a replica's samples, [samples * length], this rank's rows are.
std::vector<Segment> rows_of_replica(const std::vector<Segment>& rows, const Places& places, std::int64_t length) {
  const auto here = static_cast<std::int64_t>(places.size());
  std::vector<Segment> all;
  for (const Segment& s : rows) {
    for (std::int64_t i = s.begin; i < s.end; ++i) {
      const std::int64_t row = i / here * length + places[static_cast<std::size_t>(i % here)];
      if (!all.empty() && all.back().end == row) {
        ++all.back().end;
      } else {
        all.push_back({row, row + 1});
      }
    }
  }
  return all;
}

}  // namespace

void apply(Gpt& gpt, const std::shared_ptr<ContextAxis>& axis) {
  for (const auto& block : gpt.blocks) block->attention->core = make_core(axis);
}

void apply(TrainerOptions& settings, Mesh& mesh, const ContextParallelOptions& options) {
  if (settings.shard || settings.accumulate)
    throw std::logic_error("context_parallel::apply comes before data_parallel::apply, which sums over dp x cp");
  const std::int64_t length = settings.model.seq, samples = settings.global_batch / mesh["dp"].size();
  const auto axis = std::make_shared<ContextAxis>(mesh, options, length);
  const int tp = static_cast<int>(mesh.size("tp"));
  expect_heads(options, settings.model.heads / tp, mesh["cp"].size(), tp);
  settings.cut = [axis, before = settings.cut](Gpt& gpt) {
    if (before) before(gpt);
    apply(gpt, axis);
  };
  settings.loader.cut = [axis](const Row& whole) { return cut_row(*axis, whole); };
  settings.loader.plan_attention = [axis, model = settings.model, dtype = settings.storage.dtype](
                                       MicroBatch& b, std::span<const Row> whole, Stream& stream) {
    plan_micro_batch(*axis, b, whole, stream);
    if (axis->faults().local_positions) count_own_positions(b, model, dtype, stream);
  };
  settings.activation_part = [axis, samples, length, before = settings.activation_part](const std::string& name,
                                                                                        ActivationPart& part) {
    if (before) before(name, part);
    const Places& places = axis->layout().of(axis->rank());
    if (part.rows.empty()) part.rows = {{0, samples * static_cast<std::int64_t>(places.size())}};
    part.rows = rows_of_replica(part.rows, places, length);
  };
}

std::int64_t tokens_here(Mesh& mesh, const ContextParallelOptions& options, std::int64_t length) {
  return make_layout(options.layout, length, mesh["cp"].size()).length(mesh["cp"].rank());
}

}  // namespace ref5d::context_parallel
