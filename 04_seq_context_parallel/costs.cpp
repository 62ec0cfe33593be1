#include "04_seq_context_parallel/costs.h"

#include "03_tensor_parallel/cut.h"
#include "common/kernels/attention.h"

namespace ref5d::seq_context_parallel {

namespace {

using context_parallel::SequenceLayout;
using tensor_parallel::Heads;
using tensor_parallel::heads_of;
using tensor_parallel::LayerActivations;
using tensor_parallel::share_of;

std::int64_t element(const Layout& l) { return static_cast<std::int64_t>(dtype_size(l.options.dtype)); }
std::int64_t statistic(const Layout& l) { return static_cast<std::int64_t>(dtype_size(accumulator_of(l.options.dtype))); }
std::int64_t micro_batches(const Layout& l) { return l.options.grad_accum; }

// The heads that a rank of a cp group has during attention: with ulysses a share of its tensor-parallel rank's.
Heads heads_in_attention(const Layout& l, int place, int tp_rank) {
  const Heads here = heads_of(l.model, l.tp, tp_rank);
  if (l.context.kind != "ulysses") return here;
  return heads_of(here.query.size(), l.model.heads / l.model.kv_heads, here.offset, l.group_size(), place);
}

// Whether several ranks of a group have the same kv head, so that its gradient is a sum of theirs.
bool shares_kv_heads(const Layout& l, int tp_rank) {
  std::int64_t held = 0;
  for (int place = 0; place < l.group_size(); ++place) held += heads_in_attention(l, place, tp_rank).kv.size();
  return held > heads_of(l.model, l.tp, tp_rank).kv.size();
}

// N-1 hops, and at each every rank sends what it has of keys and values: together each of the B S tokens N-1 times. dk and dv
// follow in backward, as often.
LayerTraffic of_ring(const Layout& l, int tp_rank) {
  const std::int64_t hops = l.groups() - 1, tokens = l.options.micro_batch * l.model.seq, head_dim = l.model.head_dim();
  LayerTraffic t{hops, 0, 2 * hops, 0};
  for (int place = 0; place < (l.context.kind == "ulysses" ? l.group_size() : 1); ++place) {
    const std::int64_t numbers = hops * tokens * 2 * heads_in_attention(l, place, tp_rank).kv.size() * head_dim;
    t.forward += numbers * element(l);
    t.backward += numbers * (element(l) + statistic(l));
  }
  return t;
}

// Keys and values of every rank to N-1 others, in backward again, and with them the sums of dk and dv: shards of one length.
LayerTraffic of_all_gather(const Layout& l, int tp_rank) {
  const std::int64_t ranks = l.cp, rows = ranks * l.options.micro_batch * l.sequences().longest();
  const std::int64_t numbers = (ranks - 1) * rows * 2 * heads_of(l.model, l.tp, tp_rank).kv.size() * l.model.head_dim();
  return {2, numbers * element(l), 4, numbers * (element(l) + statistic(l))};
}

// Of each token the heads that other ranks of its group take: of q, k and v there, of the output back; in backward of dout
// there, of dq, dk and dv back.
LayerTraffic of_ulysses(const Layout& l, int tp_rank) {
  const SequenceLayout sequences = l.sequences();
  const std::int64_t head_dim = l.model.head_dim(), kv_gradient = shares_kv_heads(l, tp_rank) ? statistic(l) : element(l);
  LayerTraffic t{4, 0, 4, 0};
  for (int rank = 0; rank < l.cp; ++rank) {
    const std::int64_t tokens = l.options.micro_batch * sequences.length(rank);
    for (int place = 0; place < l.group_size(); ++place) {
      if (place == rank % l.group_size()) continue;
      const Heads theirs = heads_in_attention(l, place, tp_rank);
      const std::int64_t query = 2 * tokens * theirs.query.size() * head_dim, kv = 2 * tokens * theirs.kv.size() * head_dim;
      t.forward += (query + kv) * element(l);
      t.backward += query * element(l) + kv * kv_gradient;
    }
  }
  return t;
}

}  // namespace

int Layout::group_size() const { return context_parallel::group_size(context, cp); }

LayerTraffic layer_traffic(const Layout& l, int tp_rank) {
  if (l.cp == 1) return {};
  LayerTraffic t;
  const auto add = [&](const LayerTraffic& more) {
    t.forward_calls += more.forward_calls, t.forward += more.forward;
    t.backward_calls += more.backward_calls, t.backward += more.backward;
  };
  if (l.context.kind == "allgather") add(of_all_gather(l, tp_rank));
  if (l.context.kind == "ulysses" && l.group_size() > 1) add(of_ulysses(l, tp_rank));
  if (l.groups() > 1) add(of_ring(l, tp_rank));
  return t;
}

std::vector<PhaseTraffic> traffic_of_cp(const Layout& l) {
  const LayerTraffic first = layer_traffic(l, 0);
  LayerTraffic all;
  for (int tp_rank = 0; tp_rank < l.tp; ++tp_rank) {
    const LayerTraffic t = layer_traffic(l, tp_rank);
    all.forward += l.dp * t.forward;
    all.backward += l.dp * t.backward;
  }
  const std::int64_t layers = l.model.layers * micro_batches(l);
  std::vector<PhaseTraffic> phases{{"forward", layers * first.forward_calls, layers * all.forward},
                                   {"backward", layers * first.backward_calls, layers * all.backward}};
  if (l.options.recompute != "none") phases.push_back({"recomputation", layers * first.forward_calls, layers * all.forward});
  return phases;
}

namespace {

// With sequence parallelism, in units of one gather or reduce-scatter of [T, H]: per layer two of each in forward and in
// backward, and the inputs that backward gathers again.
struct Units {
  std::int64_t forward = 4, backward = 4, recomputation = 0, embedding = 2, head = 2;
};
Units units_of(const Layout& l) {
  Units u;
  const bool again = l.sp_keep == "shard";
  const std::string& recompute = l.options.recompute;
  if (again) u.head += 1;
  // What is recomputed is gathered there, and kept so until its backward a moment later.
  if (again) u.backward += recompute == "none" ? 2 : recompute == "selective" ? 1 : 0;
  if (recompute == "selective") u.recomputation = 1;
  if (recompute == "full") u.recomputation = 4;
  return u;
}

// Bytes of such a unit on all ranks of the axis, for T rows: shares travel in one length.
std::int64_t unit_bytes(const Layout& l, std::int64_t tokens) {
  const std::int64_t ranks = l.tp;
  return (ranks - 1) * ranks * share_of(tokens, l.tp, 0).size() * l.model.hidden * element(l);
}

// The weights that act on rows of the residual stream: all-reduces of a step, and bytes of all ranks of one axis.
PhaseTraffic sums_over_rows(const Layout& l) {
  const GptConfig& c = l.model;
  const std::int64_t of_norm = c.norm == NormKind::kLayer ? 2 : 1, biases = c.biases ? 2 : 0, L = c.layers;
  const std::int64_t of_hidden = L * (2 * of_norm + biases) + of_norm, positions = c.position == PositionKind::kLearned ? 1 : 0;
  const std::int64_t numbers = of_hidden * c.hidden + positions * c.seq * c.hidden;
  const std::int64_t sums = tensor_parallel::shared_sums_per_step(l.options, l.strategy);
  const std::int64_t bytes = numbers * tensor_parallel::shared_gradient_bytes(l.options, l.strategy);
  return {"shared gradients", sums * (of_hidden + positions), sums * 2 * bytes * (l.tp - 1)};
}

}  // namespace

std::vector<PhaseTraffic> traffic_of_tp(const Layout& l) {
  // Lesson 03's, of all B S tokens of a micro-batch: the ranks along cp have them between them. But norms and what shares
  // gradients are summed on each of them.
  std::vector<PhaseTraffic> phases = tensor_parallel::expected_traffic(l.options, l.model, l.tp, l.dp, l.strategy);
  for (PhaseTraffic& p : phases)
    if (p.phase == "norm" || p.phase == "shared gradients") p.bytes *= l.cp;
  if (!l.sp) return phases;
  const Units units = units_of(l);
  std::int64_t unit = 0;
  const SequenceLayout sequences = l.sequences();
  for (int rank = 0; rank < l.cp; ++rank) unit += l.dp * unit_bytes(l, l.options.micro_batch * sequences.length(rank));
  const std::int64_t M = micro_batches(l), layers = l.model.layers * M;
  std::vector<PhaseTraffic> all{{"forward", layers * units.forward, layers * units.forward * unit},
                                {"backward", layers * units.backward, layers * units.backward * unit},
                                {"embedding", M * units.embedding, M * units.embedding * unit},
                                {"head", M * units.head, M * units.head * unit}};
  if (units.recomputation > 0)
    all.push_back({"recomputation", layers * units.recomputation, layers * units.recomputation * unit});
  PhaseTraffic shared = sums_over_rows(l);
  shared.bytes *= l.dp * l.cp;
  for (const PhaseTraffic& p : phases) {
    if (p.phase == "shared gradients") shared.calls += p.calls, shared.bytes += p.bytes;
    if (p.phase == "cross-entropy" || p.phase == "norm") all.push_back(p);
  }
  all.push_back(shared);
  return all;
}

LayerActivations kept_of_layer(const Layout& l, int cp_rank, int tp_rank) {
  const SequenceLayout sequences = l.sequences();
  const std::int64_t tokens = l.options.micro_batch * sequences.length(cp_rank), head_dim = l.model.head_dim();
  LayerActivations kept = tensor_parallel::layer_activations(l.options, l.model, tokens, l.tp, tp_rank);
  if (l.sp) {
    const std::int64_t rows = share_of(tokens, l.tp, tp_rank).size(), message = share_of(tokens, l.tp, 0).size();
    kept.whole = tensor_parallel::layer_activations(l.options, l.model, rows, l.tp, tp_rank).whole;
    // What a reduce-scatter brought is as long as the longest share: the sublayers' outputs, with the residual added.
    const std::int64_t outputs = l.options.recompute == "full" ? 1 : 2;
    kept.whole += outputs * (message - rows) * l.model.hidden * element(l);
    const std::int64_t inputs = l.options.recompute == "none" ? 2 : l.options.recompute == "selective" ? 1 : 0;
    if (l.sp_keep == "gathered") kept.whole += inputs * (tokens - rows) * l.model.hidden * element(l);
  }
  if (l.group_size() == 1 || l.context.kind != "ulysses" || l.options.recompute != "none") return kept;
  // q, k, v, the output and the log-sum-exp as attention has them: a group's tokens of some heads. And the output once more, as
  // o reads it.
  const Heads here = heads_of(l.model, l.tp, tp_rank), in = heads_in_attention(l, cp_rank % l.group_size(), tp_rank);
  const SequenceLayout groups = context_parallel::joined(sequences, l.group_size());
  const std::int64_t of_group = l.options.micro_batch * groups.length(cp_rank / l.group_size());
  kept.cut -=
      tokens * (2 * here.query.size() + 2 * here.kv.size()) * head_dim * element(l) + tokens * here.query.size() * statistic(l);
  kept.cut +=
      of_group * (2 * in.query.size() + 2 * in.kv.size()) * head_dim * element(l) + of_group * in.query.size() * statistic(l);
  kept.cut += tokens * here.query.size() * head_dim * element(l);
  return kept;
}

std::int64_t linear_flops(const Layout& l, int cp_rank, int tp_rank) {
  GptConfig here = l.model;
  here.seq = l.sequences().length(cp_rank);
  return tensor_parallel::linear_flops_of_rank(l.options, here, l.tp, tp_rank);
}

std::int64_t attention_flops(const Layout& l, int cp_rank, int tp_rank, std::span<const Row> rows) {
  // With ulysses all tokens of a group and some of the heads; otherwise the rank's tokens and all of its heads.
  const bool exchanges = l.context.kind == "ulysses";
  const SequenceLayout queries = exchanges ? context_parallel::joined(l.sequences(), l.group_size()) : l.sequences();
  const context_parallel::Places& places = queries.of(exchanges ? cp_rank / l.group_size() : cp_rank);
  std::int64_t pairs = 0;
  for (const Row& row : rows) {
    const Row part = context_parallel::part_of(row, places);
    pairs += visible_pairs(part.order, part.start, row.order, 1);
  }
  const std::int64_t heads = heads_in_attention(l, cp_rank % l.group_size(), tp_rank).query.size(), D = l.model.head_dim();
  const std::int64_t forward = attention_forward_flops(pairs, heads, D), again = l.options.recompute == "none" ? 0 : forward;
  return l.model.layers * (forward + again + attention_backward_flops(pairs, heads, D));
}

}  // namespace ref5d::seq_context_parallel
