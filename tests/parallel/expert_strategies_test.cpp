// Every strategy with experts on several ranks: gradients, given by hand, are summed over the ranks of their kind, the norm
// counts each once, and the ledgers agree with the formulas.
#include <cmath>

#include "02_ddp_zero/claims.h"
#include "02_ddp_zero/data_parallel.h"
#include "02_ddp_zero/replicas.h"
#include "common/app/measure.h"
#include "common/app/settings.h"
#include "common/train/replicas.h"
#include "tests/support/data_parallel_testing.h"

namespace ref5d::testing {
namespace expert_strategies_test {

using namespace data_parallel;

// Takes each block's up_proj for an expert of ep rank 0 and its down_proj for one of ep rank 1.
void cut_experts(const Gpt& gpt, std::int64_t ep_rank) {
  for (Parameter* p : gpt.parameters()) {
    const bool first = p->name.find("up_proj") != std::string::npos, second = p->name.find("down_proj") != std::string::npos;
    p->expert = first || second;
    if (!p->expert) continue;
    const bool here = first == (ep_rank == 0);
    p->placement = {.dim = 0, .segments = {}};
    if (here) p->placement.segments = {{0, p->global_shape[0]}};
    p->uses = here ? 1 : 0;
  }
}

// Every element of every gradient gets (place + 1) x (m + 1) in micro-batch m.
class Given : public Passes {
 public:
  explicit Given(int place) : place_(place) {}
  void run(Gpt& gpt, Context& ctx, Loader& loader, const GlobalBatch& share, std::int64_t micro_batch,
           Strategy& strategy) override {
    for_each_micro_batch(ctx, loader, share, micro_batch, [&](std::int64_t m, MicroBatch&) {
      strategy.begin_micro_batch(m);
      for (std::int64_t unit = 0; unit < gpt.unit_count(); ++unit) {
        for (UnitHooks* h : gpt.hooks) h->before_forward(unit);
        for (auto h = gpt.hooks.rbegin(); h != gpt.hooks.rend(); ++h) (*h)->after_forward(unit);
      }
      for (std::int64_t unit = gpt.unit_count() - 1; unit >= 0; --unit)
        backward(gpt, ctx.stream, unit, static_cast<double>((place_ + 1) * (m + 1)));
      strategy.end_micro_batch(m);
    });
  }

 private:
  static void backward(Gpt& gpt, Stream& stream, std::int64_t unit, double value) {
    for (UnitHooks* h : gpt.hooks) h->before_backward(unit);
    for (UnitHooks* h : gpt.hooks) h->before_weight_gradients(unit);
    auto parameters = gpt.parameters_of(unit);
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
      if ((*p)->uses == 0) continue;
      const Parameter::Target target = (*p)->begin_contribution(stream, true);
      const Tensor given = Tensor::empty(target.tensor.shape(), target.tensor.dtype(), MemoryCategory::kWorkspace, stream);
      fill_constant(stream, given, value);
      scaled_add(stream, target.tensor, given, 1.0);
      (*p)->end_contribution(stream);
    }
    for (auto h = gpt.hooks.rbegin(); h != gpt.hooks.rend(); ++h) (*h)->after_backward(unit);
  }

  int place_;
};

class ExpertStrategies : public LayoutTest {
 protected:
  static constexpr int kMicroBatches = 2;

  // Of so many ranks along edp and cp, and two along ep; this rank's, if it is in a full one.
  static std::optional<Mesh> mesh_of(int edp, int cp) { return world_slice({.edp = edp, .ep = 2, .cp = cp}); }

  static Options options_of(Dtype dtype) {
    Options o;
    o.layers = 3;
    o.hidden = 16;
    o.heads = o.kv_heads = 2;
    o.ffn = 20;
    o.vocab = 256;
    o.seq = 8;
    o.micro_batch = 1;
    o.grad_accum = kMicroBatches;
    o.dtype = dtype;
    o.quiet = true;
    return o;
  }

  // What this rank's place adds to sums: over all ranks, and over those with the same experts.
  static double sum_over(const Mesh& mesh, bool experts) {
    double sum = 0;
    const std::int64_t ep = 2, cp = mesh.size("cp");
    for (std::int64_t place = 0; place < mesh.size("dp*cp"); ++place)
      if (!experts || place / cp % ep == mesh.coordinate("ep")) sum += static_cast<double>(place + 1);
    return sum * kMicroBatches * (kMicroBatches + 1) / 2;
  }

  static TrainerOptions settings_of(const Options& o, Mesh& mesh, const StrategyCase& s) {
    TrainerOptions settings = trainer_options(o, model_config(o), mesh["dp"].size());
    settings.cut = [ep = mesh.coordinate("ep")](Gpt& gpt) { cut_experts(gpt, ep); };
    apply(settings, mesh, s.options, s.shard_size, std::make_shared<Given>(static_cast<int>(mesh.coordinate("dp*cp"))));
    return settings;
  }

  // The norm of all gradients, from those of both ep ranks.
  static double norm_of(const Options& o, Mesh& mesh) {
    double squares = 0;
    const Gpt gpt(model_config(o));
    cut_experts(gpt, mesh.coordinate("ep"));
    for (const Parameter* p : gpt.parameters()) {
      const auto n = static_cast<double>(product(p->global_shape));
      if (!p->expert) squares += n * std::pow(sum_over(mesh, false), 2);
      if (!p->expert) continue;
      const double all = sum_over(mesh, false), own = sum_over(mesh, true);
      squares += n * std::pow(p->uses > 0 ? own : all - own, 2);
    }
    return std::sqrt(squares);
  }

  static std::vector<RankPart> parts_of(const Mesh& mesh) {
    const int cp = static_cast<int>(mesh.size("cp"));
    std::vector<RankPart> parts;
    for (int rank = 0; rank < mesh.everyone().size(); ++rank)
      parts.push_back({static_cast<std::size_t>(rank / cp % 2), {rank, rank / (2 * cp) * cp + rank % cp}});
    return parts;
  }

  static std::string failed_claims(const Options& o, const Mesh& mesh, const StrategyCase& s, Report report) {
    const auto ranks = static_cast<int>(mesh.size(gradient_axes(mesh))), same = static_cast<int>(mesh.size(expert_axes(mesh)));
    const int shard = s.options.kind == "hsdp" ? s.shard_size : ranks;
    std::vector<data_parallel::Layout> layouts;
    for (int ep = 0; ep < 2; ++ep) {
      const Gpt gpt(model_config(o));
      cut_experts(gpt, ep);
      layouts.push_back(layout_of(o, gpt, s.options, {ranks, shard}, {same, expert_shard_size(mesh, shard)}));
    }
    claim_costs(report, layouts, parts_of(mesh), s.options);
    std::string failed = report.claims.size() < 5 ? "too few claims" : "";
    for (const Claim& c : report.claims)
      if (!c.pass)
        failed += c.name + ": " + std::to_string(c.expected) + " expected, " + std::to_string(c.measured) + " measured\n";
    return failed;
  }

  void expect_sums_norms_and_claims(Mesh& mesh, const StrategyCase& s, const Options& o) {
    const std::string text = s.text() + " " + std::string(dtype_name(o.dtype));
    const TrainerOptions settings = settings_of(o, mesh, s);
    const Dataset data(dataset_options(o, settings.model));
    {
      Trainer trainer(settings, data);
      trainer.accumulate();
      std::vector<double> ordinary, experts;
      for (const Parameter* p : trainer.gpt().parameters()) {
        const std::vector<double> held = held_part(*p, p->final_gradient()).to_doubles(trainer.stream());
        auto& all = p->expert ? experts : ordinary;
        all.insert(all.end(), held.begin(), held.end());
      }
      EXPECT_EQ(unlike(sum_over(mesh, false), ordinary), "") << text;
      EXPECT_EQ(unlike(sum_over(mesh, true), experts), "") << text << ", experts";
      const NamedValues gathered = trainer.gradients();
      if (mesh.everyone().rank == 0)
        for (const auto& [name, values] : gathered) {
          const bool first = name.find("up_proj") != std::string::npos, second = name.find("down_proj") != std::string::npos;
          const double own = sum_over(mesh, true), all = sum_over(mesh, false);
          EXPECT_EQ(unlike(first ? own : second ? all - own : all, values), "") << text << name;
        }
    }
    Trainer trainer(settings, data);
    for (int step = 0; step < 2; ++step) {
      const double norm = trainer.step().grad_norm, expected = norm_of(o, mesh);
      EXPECT_NEAR(norm / expected, 1, 1e-13) << text;
    }
    for (const bool experts : {false, true}) {
      std::vector<Tensor> weights;
      for (const Parameter* p : trainer.gpt().parameters())
        if (p->expert == experts) weights.push_back(p->weight);
      EXPECT_TRUE(equal_on_all(holders_of_the_same(mesh, s.options, s.shard_size, experts), weights, trainer.stream())) << text;
    }
  }
};

TEST_F(ExpertStrategies, P19_P47_SumsNormsAndClaims) {
  NEEDS_RANKS(4);
  for (const int cp : {1, 2}) {
    for (const int edp : {1, 2, 4}) {
      if (2 * edp * cp != world().size()) continue;  // reports are of all ranks
      std::optional<Mesh> mesh = mesh_of(edp, cp);
      if (!mesh) continue;
      for (StrategyCase s : every_strategy(2 * edp * cp)) {
        s.options.bucket_bytes = 3000;
        for (const int variant : {0, 1, 2, 3}) {
          const Options o = options_of(variant == 1 ? Dtype::kBf16 : Dtype::kFp64);
          s.options.whole_model_unit = variant == 2;
          s.options.overlap = s.options.prefetch = variant != 3;
          expect_sums_norms_and_claims(*mesh, s, o);
          const TrainerOptions settings = settings_of(o, *mesh, s);
          const Measured measured = ref5d::measure("test", o, settings, 2, world(), *mesh);
          const std::string failed = mesh->everyone().rank == 0 ? failed_claims(o, *mesh, s, measured.report) : "";
          EXPECT_EQ(failed, "") << s.text() << " edp " << edp << " cp " << cp << " variant " << variant;
        }
      }
    }
  }
}

TEST_F(ExpertStrategies, P19_P47_FaultsShow) {
  NEEDS_RANKS(4);
  std::optional<Mesh> mesh = mesh_of(2, 1);
  if (!mesh) return;
  const Options o = options_of(Dtype::kFp64);
  const Dataset data(dataset_options(o, model_config(o)));
  for (StrategyCase s : every_strategy(4)) {
    s.options.faults.experts_left_out_of_norm = true;
    Trainer left_out(settings_of(o, *mesh, s), data);
    EXPECT_LT(left_out.step().grad_norm, 0.999 * norm_of(o, *mesh)) << s.text();
    s.options.faults = {};
    s.options.faults.expert_gradient_factor = 0.5;
    Trainer halved(settings_of(o, *mesh, s), data);
    halved.accumulate();
    for (const Parameter* p : halved.gpt().parameters()) {
      const double factor = p->expert && s.options.kind != "naive" ? 0.5 : 1;
      EXPECT_EQ(unlike(factor * sum_over(*mesh, p->expert), held_part(*p, p->final_gradient()).to_doubles(halved.stream())), "")
          << s.text();
    }
  }
}

}  // namespace expert_strategies_test
}  // namespace ref5d::testing
