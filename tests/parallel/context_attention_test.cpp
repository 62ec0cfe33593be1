// The attention between ranks by itself: outputs, log-sum-exps and gradients beside those of one device, by the definition.
#include "04_seq_context_parallel/all_gather_attention.h"
#include "04_seq_context_parallel/ulysses_attention.h"
#include "tests/support/attention_testing.h"
#include "tests/support/seq_context_testing.h"

namespace ref5d::testing {
namespace {

using context_parallel::AttentionPlan;
using context_parallel::ContextAxis;
using context_parallel::make_plan;
using context_parallel::Places;

// Attention over whole sequences; documents begin at `starts`.
AttentionCase whole_case(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t kv_heads,
                         const std::vector<std::int32_t>& starts = {0}, std::int64_t head_dim = 4) {
  AttentionCase c = make_case(Layout::kCausal, batch, length, length, heads, kv_heads, head_dim);
  for (std::size_t i = 0; i < c.q_start.size(); ++i)
    c.q_start[i] = *(std::upper_bound(starts.begin(), starts.end(), c.q_order[i]) - 1);
  return c;
}

std::vector<Row> rows_of(const AttentionCase& c) {
  std::vector<Row> rows(static_cast<std::size_t>(c.batch));
  for (std::size_t i = 0; i < c.q_order.size(); ++i) {
    Row& row = rows[i / static_cast<std::size_t>(c.q_len)];
    row.order.push_back(c.q_order[i]);
    row.start.push_back(c.q_start[i]);
  }
  return rows;
}

// ||a - b||, infinite if one of them is not finite; an empty b is zero.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = b.empty() || a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(a[i] - (b.empty() ? 0 : b[i]), 2);
  return std::isfinite(sum) ? std::sqrt(sum) : INFINITY;
}

struct Settings {
  Dtype dtype = Dtype::kFp64;
  bool packed = false;  // q, k and v are columns of one matrix, as their gradients are
};

// What a rank of a mesh along cp has of a case, and what attention makes of it.
class CoreRun {
 public:
  CoreRun(Mesh& mesh, const ContextParallelOptions& options, const AttentionCase& c, const Settings& settings = {})
      : case_(c), settings_(settings), axis_(std::make_shared<ContextAxis>(mesh, options, c.q_len)) {
    batch_.batch = c.batch;
    batch_.seq = axis_->layout().length(axis_->rank());
    batch_.attention_plan = std::make_shared<const AttentionPlan>(make_plan(*axis_, rows_of(c), ctx_.stream));
    ctx_.dtype = settings.dtype;
    ctx_.batch = &batch_;
    run();
  }

  [[nodiscard]] const AttentionPlan& plan() const { return *context_parallel::plan_of(ctx_); }
  [[nodiscard]] const ContextAxis& axis() const { return *axis_; }
  [[nodiscard]] const AttentionResult& here() const { return here_; }
  // This rank's rows of the whole.
  [[nodiscard]] AttentionResult part_of(const AttentionResult& whole) const {
    AttentionResult part;
    const std::int64_t q = case_.heads * case_.head_dim, kv = case_.kv_heads * case_.head_dim;
    part.o = rows(whole.o, q), part.dq = rows(whole.dq, q), part.dk = rows(whole.dk, kv), part.dv = rows(whole.dv, kv);
    for (std::int64_t row = 0; row < case_.batch * case_.heads; ++row)
      for (const std::int32_t place : places()) part.lse.push_back(whole.lse[std::size_t(row * case_.q_len + place)]);
    return part;
  }
  void expect_equal_to(const AttentionResult& whole, double tolerance, const std::string& what) const {
    const AttentionResult part = part_of(whole);
    for (const auto& [name, values] : {std::pair{"o", &AttentionResult::o},
                                       {"dq", &AttentionResult::dq},
                                       {"dk", &AttentionResult::dk},
                                       {"dv", &AttentionResult::dv}})
      EXPECT_LE(distance(here_.*values, part.*values), tolerance * std::max(1.0, distance(whole.*values, {})))
          << name << " of " << what;
    if (here_.lse.empty()) return;
    EXPECT_LE(distance(here_.lse, part.lse), tolerance * distance(whole.lse, {})) << "lse of " << what;
  }

 private:
  [[nodiscard]] const Places& places() const { return axis_->layout().of(axis_->rank()); }
  [[nodiscard]] std::vector<double> rows(const std::vector<double>& values, std::int64_t width) const {
    std::vector<double> here;
    for (std::int64_t b = 0; b < case_.batch; ++b) {
      for (const std::int32_t place : places()) {
        const auto at = values.begin() + (b * case_.q_len + place) * width;
        here.insert(here.end(), at, at + width);
      }
    }
    return here;
  }
  [[nodiscard]] std::unique_ptr<AttentionCore> core() const {
    const std::string& kind = axis_->options().kind;
    if (kind == "allgather") return std::make_unique<context_parallel::AllGatherAttention>(axis_);
    if (kind == "ulysses" && axis_->layout_of_group().ranks() > 1)
      return std::make_unique<context_parallel::UlyssesAttention>(axis_);
    return std::make_unique<context_parallel::RingAttention>(axis_);
  }
  void run() {
    const std::int64_t tokens = batch_.token_count(), q_width = case_.heads * case_.head_dim,
                       kv_width = case_.kv_heads * case_.head_dim;
    // Gradients begin as NaN, and so does what is beside them.
    const AttentionRun beside{.dtype = settings_.dtype, .before = settings_.packed ? 3 : 0, .after = settings_.packed ? 2 : 0};
    const auto placed = [&](const std::vector<double>& values, std::int64_t width) {
      return place(values, tokens, width, beside, settings_.dtype);
    };
    const auto nothing = [&](std::int64_t width) {
      return placed(std::vector<double>(static_cast<std::size_t>(tokens * width), std::nan("")), width);
    };
    const Tensor q = placed(rows(case_.q, q_width), q_width).part, k = placed(rows(case_.k, kv_width), kv_width).part,
                 v = placed(rows(case_.v, kv_width), kv_width).part,
                 dout = device_tensor(rows(case_.dout, q_width), {tokens, q_width}, settings_.dtype);
    const PlacedTensor dq = nothing(q_width), dk = nothing(kv_width), dv = nothing(kv_width);
    const HeadMap heads{case_.head_dim, case_.group ? case_.group : case_.heads / case_.kv_heads, case_.head_offset};
    const std::unique_ptr<AttentionCore> attention = core();
    Saved saved;
    here_.o = values_of(attention->forward(ctx_, q, k, v, heads, saved));
    Saved copy = saved;
    if (axis_->options().kind == "ring" && !axis_->faults().own_lse) here_.lse = values_of(copy.pop("ring.lse"));
    if (axis_->options().kind == "allgather") here_.lse = values_of(copy.pop("gather.lse"));
    attention->backward(ctx_, dq.part, dk.part, dv.part, dout, heads, saved);
    EXPECT_TRUE(saved.empty());
    here_.dq = values_of(dq.part), here_.dk = values_of(dk.part), here_.dv = values_of(dv.part);
    for (const PlacedTensor* t : {&dq, &dk, &dv}) t->expect_rest_untouched();
  }

  const AttentionCase& case_;
  Settings settings_;
  std::shared_ptr<ContextAxis> axis_;
  MicroBatch batch_;
  Context ctx_{device().compute()};
  AttentionResult here_;
};

class ContextAttention : public LayoutTest {
 protected:
  const int n_ = world().size();

  // ||a - b|| / ||b|| over all ranks of the mesh.
  double error_over(Mesh& mesh, const std::vector<double>& a, const std::vector<double>& b) {
    // Of the ranks' shares.
    const auto sum = [&](double mine) {
      double all = 0;
      for (const Bytes& bytes : all_gather_on_host(mesh.everyone(), to_bytes(mine))) all += to_number(bytes);
      return all;
    };
    return std::sqrt(sum(std::pow(distance(a, b), 2)) / sum(std::pow(distance(b, {}), 2)));
  }
};

// Each of the three gradients, and with them output and log-sum-exp: for lengths that the ranks divide and others, for as few
// tokens as there are ranks, several sequences, documents, and kv heads that several ranks' query heads share.
TEST_F(ContextAttention, P34_OutputAndGradientsAreThoseOfOneDevice) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = n_});
  AttentionCase part_of_groups = whole_case(1, 3 * n_ + 1, 3 * n_ - 1, n_);  // the first head's group begins elsewhere
  part_of_groups.group = 3;
  part_of_groups.head_offset = 1;
  for (const auto& [c, packed] : {std::pair{whole_case(1, 7 * n_ + 3, 2 * n_, 2), false},
                                  {whole_case(3, n_, n_, 1), false},
                                  {whole_case(2, 4 * n_ + 1, 3 * n_, n_, {0, 3, 4, 2 * n_ + 2}), false},
                                  {whole_case(2, 2 * n_, n_ + 1, n_ + 1), true},
                                  {part_of_groups, true}}) {
    if (kEmulated && c.batch == 3) continue;
    const AttentionResult whole = reference_attention(c);
    for (const std::string& layout : context_parallel::layout_names()) {
      if (kEmulated && layout != "zigzag") continue;
      for (const ContextParallelOptions& options : every_kind(n_, layout))
        CoreRun(*mesh, options, c, {.packed = packed}).expect_equal_to(whole, 1e-12, text(options) + ", " + c.name());
    }
  }
}

// That this notices the two classic mistakes of backward and of the ring: a hop's own log-sum-exp, and keys that are skipped
// because their rank is a later one.
TEST_F(ContextAttention, P34_TheHopsOwnLogSumExpIsNoticed) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = n_});
  const AttentionCase c = whole_case(1, 4 * n_, 2, 1);
  const AttentionResult whole = reference_attention(c);
  ContextParallelOptions options = context_of("ring");
  options.faults.own_lse = true;
  const CoreRun wrong(*mesh, options, c);
  const AttentionResult part = wrong.part_of(whole);
  EXPECT_LE(relative_error(wrong.here().o, part.o), 1e-12);  // the forward is right
  for (const auto values : {&AttentionResult::dq, &AttentionResult::dk, &AttentionResult::dv})
    EXPECT_GT(error_over(*mesh, wrong.here().*values, part.*values), 0.1);
  options.faults.own_lse = false;
  options.faults.skip_by_rank = true;
  const CoreRun skipping(*mesh, options, c);
  EXPECT_GT(error_over(*mesh, skipping.here().o, part.o), 0.1);
}

// Documents of 7, 5 and 4 tokens in a row of 16, over two ranks.
std::vector<std::int32_t> t9_tokens() {
  std::vector<std::int32_t> tokens(16);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}
Row t9_row() {
  static const std::vector<std::int32_t> tokens = t9_tokens();
  const Document all(tokens);
  const std::vector<Document> documents{all.subspan(0, 7), all.subspan(7, 5), all.subspan(12, 4)};
  return pack_documents(documents, 16).at(0);
}

// What each rank of two is given: through the loader, as a model gets it.
TEST_F(ContextAttention, P30_P31_T9_PositionsAndLabelsOfAPackedRow) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = 2});
  if (!mesh) return;
  TrainerOptions o = options_for(with_length(small(), 16), 1, 1);
  o.model.vocab = 16;
  const auto take = [&](const ContextParallelOptions& options) {
    TrainerOptions cut = o;
    context_parallel::apply(cut, *mesh, options);
    Loader loader(cut.model, Dtype::kFp64, device().compute(), cut.loader);
    loader.start(std::vector<Row>{t9_row()}, 0);
    return loader.take(1.0);
  };
  const auto as_ints = [](const Tensor& t) {
    const std::vector<double> values = values_of(t);
    return Ints(values.begin(), values.end());
  };
  constexpr std::int32_t kNone = kIgnoreLabel;
  const bool first = (*mesh)["cp"].rank() == 0;
  const Ints tokens = first ? Ints{0, 1, 2, 3, 12, 13, 14, 15} : Ints{4, 5, 6, 7, 8, 9, 10, 11},
             positions = first ? Ints{0, 1, 2, 3, 0, 1, 2, 3} : Ints{4, 5, 6, 0, 1, 2, 3, 4},
             labels = first ? Ints{1, 2, 3, 4, 13, 14, 15, kNone} : Ints{5, 6, kNone, 8, 9, 10, 11, kNone};
  const MicroBatch b = take({});
  EXPECT_EQ(as_ints(b.tokens), tokens);
  EXPECT_EQ(as_ints(b.residual.position), positions);
  EXPECT_EQ(as_ints(b.labels), labels);
  // RoPE turns by those positions.
  const RopeTable table = make_rope_table(device().compute(), ints(positions), ints(Ints(8, 0)), o.model.head_dim(),
                                          o.model.rope_theta, Dtype::kFp64);
  EXPECT_EQ(values_of(b.rope.cos), values_of(table.cos));
  EXPECT_EQ(values_of(b.rope.sin), values_of(table.sin));
  EXPECT_EQ(count_valid_labels(t9_row()), 13);
  // The mistakes give others.
  ContextParallelOptions wrong;
  wrong.faults.labels_after_cut = true;
  EXPECT_NE(as_ints(take(wrong).labels), labels);
  wrong.faults.labels_after_cut = false;
  wrong.faults.local_positions = true;
  EXPECT_NE(as_ints(take(wrong).residual.position), positions);
  EXPECT_NE(values_of(take(wrong).rope.cos), values_of(table.cos));
}

// Four chunks of four tokens, two on each rank. Of the pairs (queries, keys) in which the queries come later, four see nothing,
// and in (1, 0) token 7 alone does not, which begins the second document.
TEST_F(ContextAttention, P32_T9_PackedRowOverTwoRanks) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = 2});
  if (!mesh) return;
  const Row row = t9_row();
  const auto chunk = [](const Ints& values, int i) { return Ints(values.begin() + 4 * i, values.begin() + 4 * (i + 1)); };
  const auto pairs = [&](int queries, int keys) {
    return visible_pairs(chunk(row.order, queries), chunk(row.start, queries), chunk(row.order, keys), 1);
  };
  for (const auto& [queries, keys] : {std::pair{2, 0}, {3, 0}, {3, 1}, {3, 2}}) EXPECT_EQ(pairs(queries, keys), 0);
  EXPECT_EQ(pairs(1, 0), 3 * 4);
  for (int token = 4; token < 8; ++token)
    EXPECT_EQ(visible_pairs({row.order[std::size_t(token)]}, {row.start[std::size_t(token)]}, chunk(row.order, 0), 1),
              token == 7 ? 0 : 4);

  const AttentionCase c = whole_case(1, 16, 4, 2, {0, 7, 12});
  EXPECT_EQ(c.q_start, row.start);
  const AttentionResult whole = reference_attention(c);
  for (const ContextParallelOptions& options : every_kind(2)) {
    const CoreRun run(*mesh, options, c);
    run.expect_equal_to(whole, 1e-12, text(options));
    for (const auto* values : {&run.here().o, &run.here().dq, &run.here().dk, &run.here().dv})
      EXPECT_TRUE(std::all_of(values->begin(), values->end(), [](double x) { return std::isfinite(x); })) << text(options);
    if (options.kind != "ring") continue;
    // Rank 0's queries, 0 to 3 and 12 to 15, see nothing of rank 1's keys; rank 1's 4 to 6 see rank 0's first four.
    EXPECT_EQ(run.plan().blocks[0].visible_pairs, run.axis().rank() == 0 ? 10 + 10 : 3 * 4);
    EXPECT_EQ(run.plan().blocks[1].visible_pairs, run.axis().rank() == 0 ? 0 : 6 + 15);
  }
}

// Hops that see nothing at all, since a document ends where a rank's tokens do, and rows that see nothing of a hop's keys.
TEST_F(ContextAttention, P32_HopsThatSeeNothing) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = n_});
  std::vector<std::int32_t> starts;
  for (int r = 0; r < n_; ++r) starts.push_back(6 * r);
  const AttentionCase c = whole_case(2, 6 * n_, n_, 1, starts);
  const AttentionResult whole = reference_attention(c);
  for (const char* layout : {"contiguous", "zigzag", "striped"}) {
    const CoreRun run(*mesh, context_of("ring", layout), c);
    run.expect_equal_to(whole, 1e-12, layout);
    if (std::string(layout) != "contiguous") continue;
    for (int r = 0; r < n_; ++r)
      EXPECT_EQ(run.plan().blocks[std::size_t(r)].visible_pairs, r == run.axis().rank() ? 2 * 21 : 0) << r;
  }
  // Padding, of which each token is a document.
  AttentionCase padding = c;
  padding.q_start = padding.q_order;
  const AttentionResult each_its_own = reference_attention(padding);
  for (const ContextParallelOptions& options : every_kind(n_))
    CoreRun(*mesh, options, padding).expect_equal_to(each_its_own, 1e-12, text(options) + ", padding");
}

// Scores of 6e4 and of -6e4: every key, every second one, and the first alone is the small one. All are exact in fp32.
TEST_F(ContextAttention, P32_HugeScores) {
  NEEDS_RANKS(2);
  auto mesh = mesh_slice({.cp = n_});
  for (const std::int64_t period : {1, 2, 100}) {
    AttentionCase c = whole_case(1, 5 * n_, n_, 1);
    for (double& x : c.q) x = 0;
    for (double& x : c.k) x = 0;
    for (std::size_t i = 0; i < c.q.size(); i += 4) c.q[i] = 256;  // the scale is 1/2
    for (std::int64_t j = 0; j < c.k_len; ++j) c.k[std::size_t(j) * 4] = (j % period == 0 ? -6e4 : 6e4) * 2 / 256;
    const AttentionResult whole = reference_attention(c);
    for (const ContextParallelOptions& options : every_kind(n_)) {
      const std::string what = text(options) + ", period " + std::to_string(period);
      // A log-sum-exp of 6e4 is 2^-37 exact: that is what the shares of a ring's hops are off by, and exp(score - lse).
      const CoreRun run(*mesh, options, c);
      const AttentionResult part = run.part_of(whole);
      EXPECT_LE(relative_error(run.here().o, part.o), run.plan().blocks.size() > 1 ? 1e-11 : 1e-12) << what;
      EXPECT_LE(relative_error(run.here().dv, part.dv), 1e-11) << what;
      const CoreRun narrow(*mesh, options, c, {.dtype = Dtype::kFp32});
      // fp32 holds the log-sum-exps that are merged to 0.002, and so the share that each hop's output has.
      EXPECT_LE(relative_error(narrow.here().o, part.o), run.plan().blocks.size() > 1 ? 4e-3 : 1e-6) << what;
      for (const CoreRun* r : {&run, &narrow})
        for (const auto* values : {&r->here().dq, &r->here().dk, &r->here().dv, &r->here().lse})
          EXPECT_TRUE(std::all_of(values->begin(), values->end(), [](double x) { return std::isfinite(x); })) << what;
    }
    ContextParallelOptions wrong = context_of("ring");
    wrong.faults.merge_without_maximum = true;
    const CoreRun overflows(*mesh, wrong, c);
    EXPECT_FALSE(error_over(*mesh, overflows.here().o, overflows.part_of(whole).o) < 0.1) << "period " << period;
  }
}

// Partial results and sums of gradients are kept in the accumulator's dtype and rounded once, so a longer ring is not worse.
TEST_F(ContextAttention, P33_ErrorsDoNotGrowWithTheRing) {
  NEEDS_RANKS(2);
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
    const AttentionCase c = whole_case(1, 64, 8, 2, {0}, 8).in(dtype);
    const AttentionResult whole = reference_attention(c);
    for (const char* kind : {"ring", "allgather", "ulysses"}) {
      std::map<std::string, std::vector<double>> errors;
      for (int ranks = 1; ranks <= std::min(n_, 8); ranks *= 2) {
        auto mesh = mesh_slice({.cp = ranks});
        if (!mesh) continue;
        const CoreRun run(*mesh, context_of(ranks == 1 ? "ring" : kind), c, {.dtype = dtype});
        const AttentionResult part = run.part_of(whole);
        for (const auto& [name, values] : {std::pair{"o", &AttentionResult::o},
                                           {"dq", &AttentionResult::dq},
                                           {"dk", &AttentionResult::dk},
                                           {"dv", &AttentionResult::dv}})
          errors[name].push_back(error_over(*mesh, run.here().*values, part.*values));
      }
      for (const auto& [name, by_ranks] : errors) {
        std::string list;
        for (double e : by_ranks) list += " " + std::to_string(e * 1e6);
        for (double e : by_ranks)
          EXPECT_LE(e, (dtype == Dtype::kBf16 ? 1.01 : 1.25) * by_ranks[0])
              << name << " of " << kind << ", " << dtype_name(dtype) << ", in millionths:" << list;
      }
    }
  }
}

}  // namespace
}  // namespace ref5d::testing
