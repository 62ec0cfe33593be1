// The router of a mixture of experts: scores, choices, weights, and the losses on its load and its logits.
#include <fmt/format.h>

#include "common/kernels/router.h"
#include "common/tools/kernel_inputs.h"

namespace ref5d {
namespace {

struct RouterSize {
  std::int64_t rows, experts;
  ChoiceRule rule;
  std::int64_t sequences;
  [[nodiscard]] std::string name() const { return fmt::format("{}x{}x{}", rows, experts, rule.top_k); }
  [[nodiscard]] Shape of_experts() const { return {rows, experts}; }
  [[nodiscard]] Shape of_choices() const { return {rows, rule.top_k}; }
};

// Different experts for each row.
Tensor choices(CaseInputs& in, const RouterSize& z) {
  std::vector<double> chosen;
  for (std::int64_t row = 0; row < z.rows; ++row)
    for (std::int64_t j = 0; j < z.rule.top_k; ++j) chosen.push_back(static_cast<double>((5 * row + j) % z.experts));
  return in.constants(chosen, z.of_choices(), Dtype::kInt32);
}

PreparedCase router_scores_case(CaseInputs& in, const RouterSize& z) {
  const Tensor logits = in.normal(z.of_experts(), 3), softmax = in.target(z.of_experts()), sigmoid = in.target(z.of_experts());
  const Tensor sum = in.target_in(Dtype::kFp64, {1}), sequence = in.integers({z.rows}, -1, 2);
  PreparedCase c;
  c.step("router_softmax", [=](Stream& s) { router_scores(s, softmax, logits, ScoreKind::kSoftmax); }, {logits}, {softmax});
  c.step("router_sigmoid", [=](Stream& s) { router_scores(s, sigmoid, logits, ScoreKind::kSigmoid); }, {logits}, {sigmoid});
  c.step("router_z_sum", [=](Stream& s) { router_z_sum(s, sum, logits, sequence); }, {logits, sequence}, {sum});
  c.output("softmax", softmax);
  c.output("sigmoid", sigmoid);
  c.output("z", sum, in.dtype());
  return c;
}

PreparedCase router_choice_case(CaseInputs& in, const RouterSize& z) {
  const Tensor scores = in.positive_in(in.dtype(), z.of_experts()), bias = in.normal({z.experts}), given = choices(in, z);
  const Tensor anywhere = in.target_in(Dtype::kInt32, z.of_choices()), in_groups = in.target_in(Dtype::kInt32, z.of_choices());
  const Tensor weights = in.target(z.of_choices()), shares = in.target(z.of_choices());
  PreparedCase c;
  c.step("choose_experts",
         [=](Stream& s) {
           choose_experts(s, anywhere, scores, {}, {z.rule.top_k, 1, 1});
         },
         {scores}, {anywhere});
  c.step("choose_experts_in_groups", [=](Stream& s) { choose_experts(s, in_groups, scores, bias, z.rule); }, {scores, bias},
         {in_groups});
  // The chosen scores alone.
  c.step("routing_weights", [=](Stream& s) { routing_weights(s, weights, scores, given, false, 2.5); }, {given, weights},
         {weights});
  c.step("routing_weights_renormalised", [=](Stream& s) { routing_weights(s, shares, scores, given, true, 2.5); },
         {given, shares}, {shares});
  c.exact_output("anywhere", anywhere);
  c.exact_output("in_groups", in_groups);
  c.output("weights", weights);
  c.output("shares", shares);
  return c;
}

PreparedCase router_load_case(CaseInputs& in, const RouterSize& z) {
  const Tensor scores = in.positive_in(in.dtype(), z.of_experts()), chosen = choices(in, z);
  const Tensor sequence = in.integers({z.rows}, 0, z.sequences);
  const Shape shape{z.sequences, 2, z.experts};
  const Tensor softmax = in.target_in(Dtype::kFp64, shape), sigmoid = in.target_in(Dtype::kFp64, shape);
  const Tensor given_load = in.positive_in(Dtype::kFp64, shape), lengths = in.positive_in(Dtype::kFp64, {z.sequences});
  const Tensor loss = in.target_in(Dtype::kFp64, {1}), gradient = in.target({z.sequences, z.experts});
  PreparedCase c;
  c.step("router_load_softmax", [=](Stream& s) { router_load(s, softmax, scores, chosen, sequence, ScoreKind::kSoftmax); },
         {scores, chosen, sequence}, {softmax});
  c.step("router_load_sigmoid", [=](Stream& s) { router_load(s, sigmoid, scores, chosen, sequence, ScoreKind::kSigmoid); },
         {scores, chosen, sequence}, {sigmoid});
  c.step("balance_loss", [=](Stream& s) { balance_loss(s, loss, gradient, given_load, lengths, z.rule.top_k, 0.01, 1.0 / 7); },
         {given_load, lengths}, {loss, gradient});
  // Sums and quotients of the given scores in fp64, in the same order everywhere.
  c.exact_output("softmax", softmax);
  c.exact_output("sigmoid", sigmoid);
  c.output("loss", loss);
  c.output("gradient", gradient);
  return c;
}

// `with_losses`: with the gradients of the balance loss and of the logits' size.
RouterGradient given_gradient(CaseInputs& in, const RouterSize& z, ScoreKind kind, bool renormalise, bool with_losses) {
  RouterGradient g;
  g.kind = kind;
  g.renormalise = renormalise;
  g.scale = 2.5;
  g.scores = in.positive_in(in.dtype(), z.of_experts());
  g.chosen = choices(in, z);
  g.dweights = in.normal(z.of_choices());
  if (with_losses) {
    g.logits = in.normal(z.of_experts(), 3);
    g.balance_gradient = in.normal({z.sequences, z.experts});
    g.sequence = in.integers({z.rows}, 0, z.sequences);
    g.z_scale = 0.01;
  }
  return g;
}

PreparedCase router_backward_case(CaseInputs& in, const RouterSize& z) {
  const RouterGradient plain = given_gradient(in, z, ScoreKind::kSoftmax, true, false);
  const RouterGradient softmax = given_gradient(in, z, ScoreKind::kSoftmax, false, true);
  const RouterGradient sigmoid = given_gradient(in, z, ScoreKind::kSigmoid, true, true);
  PreparedCase c;
  const auto add = [&](const std::string& name, const RouterGradient& g) {
    const Tensor dlogits = in.target(z.of_experts());
    c.step("router_backward_" + name, [=](Stream& s) { router_backward(s, dlogits, g); },
           {g.scores, g.chosen, g.dweights, g.logits, g.balance_gradient, g.sequence}, {dlogits});
    c.output("dlogits_" + name, dlogits);
  };
  add("plain", plain);
  add("softmax", softmax);
  add("sigmoid", sigmoid);
  return c;
}

}  // namespace

void add_router_cases(CaseList& list, CaseSize size) {
  using Sizes = std::vector<RouterSize>;
  // 70 and 261 rows are several stretches of the load's sums; 300 experts are more than a block has threads.
  const Sizes sizes = size == CaseSize::kLarge ? Sizes{{16384, 256, {8, 8, 4}, 4}}
                                               : Sizes{{70, 40, {3, 5, 2}, 3}, {3, 300, {6, 10, 4}, 2}, {261, 8, {2, 4, 2}, 1}};
  const auto add = [&](const std::string& op, PreparedCase (*make)(CaseInputs&, const RouterSize&)) {
    for (const RouterSize& z : sizes)
      for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32})  // bf16 models' routers compute in fp32
        list.push_back({op + "/" + z.name(), dtype, false, [=](CaseInputs& in) { return make(in, z); }});
  };
  add("router_scores", router_scores_case);
  add("router_choice", router_choice_case);
  add("router_load", router_load_case);
  add("router_backward", router_backward_case);
}

}  // namespace ref5d
