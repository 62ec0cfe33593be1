// Short documents: one per row with padding, or packed one after the other with boundaries that attention does not cross.
#include <fmt/core.h>

#include <algorithm>

#include "01_grad_accum/experiments.h"
#include "common/app/settings.h"
#include "common/train/run_record.h"
#include "common/verify/compare.h"

namespace ref5d::grad_accum {

namespace {

using Text = std::vector<std::vector<std::int32_t>>;  // of documents

std::vector<Document> views(const Text& text) { return {text.begin(), text.end()}; }

// Rows that one step takes all at once, so that a step is an epoch.
TrainerOptions one_epoch_a_step(const Options& options, const std::vector<Row>& rows) {
  TrainerOptions t = trainer_options(options, model_config(options));
  t.global_batch = static_cast<std::int64_t>(rows.size());
  t.micro_batch = std::min(t.micro_batch, t.global_batch);
  return t;
}

// Documents of 7/16, 5/16 and 4/16 of a row: together they fill one.
Text three_documents(std::int64_t seq, std::int64_t vocab) {
  Text text;
  std::int64_t next = 11;
  for (const std::int64_t share : {7, 5, 4}) {
    auto& document = text.emplace_back();
    for (std::int64_t i = 0; i < share * seq / 16; ++i, next += 37) document.push_back(static_cast<std::int32_t>(next % vocab));
  }
  return text;
}

NamedValues gradients_of(const Options& options, const std::vector<Row>& rows) {
  TrainerOptions t = one_epoch_a_step(options, rows);
  t.storage.dtype = Dtype::kFp64;
  t.gemm = GemmKind::kBlas;  // tensor cores do not take fp64
  const Dataset data(rows);
  Trainer trainer(t, data);
  trainer.accumulate();
  return trainer.gradients();
}

// The first documents of the training text, as many as fill 32 padded rows. A row whose last label is known is cut there, and
// its document goes on in the next.
Text leading_documents(Options options) {
  options.documents = "pad";
  const Dataset data(dataset_options(options, model_config(options)));
  Text text;
  bool goes_on = false;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(data.rows(), 32); ++i) {
    const Row row = data.row(i);
    if (!goes_on) text.emplace_back();
    text.back().insert(text.back().end(), row.tokens.begin(), row.tokens.begin() + row.useful);
    goes_on = row.labels[static_cast<std::size_t>(row.useful - 1)] != kIgnoreLabel;
  }
  return text;
}

// Five epochs over the rows.
struct Outcome {
  PackingStats stats;
  RunRecord record;

  [[nodiscard]] std::int64_t labels() const { return record.steps.front().valid_tokens; }
  // Of an epoch, in the products with weights: two of them backward for each forward.
  [[nodiscard]] double flops() const {
    return static_cast<double>(record.flops_per_step.count(FlopsKind::kBlockLinear) +
                               record.flops_per_step.count(FlopsKind::kHead));
  }
  [[nodiscard]] double labels_per_second() const {
    double labels = 0, ms = 0;
    for (const StepResult& s : record.steps) {
      labels += static_cast<double>(s.valid_tokens);
      ms += s.ms;
    }
    return labels / ms * 1e3;
  }
};

Outcome train(const Options& options, const std::vector<Row>& rows) {
  const Dataset data(rows);
  Trainer trainer(one_epoch_a_step(options, rows), data);
  return {packing_stats(rows), record_run(trainer, 5, 0)};
}

void compare_three_documents(Options options, Verdict& verdict) {
  const GptConfig model = model_config(options);
  options.seq = std::max<std::int64_t>(16, model.seq / 16 * 16);
  const Text text = three_documents(*options.seq, model.vocab);
  verdict.add_set("packed against padded gradients",
                  compare_sets(gradients_of(options, pack_documents(views(text), *options.seq)),
                               gradients_of(options, pad_documents(views(text), *options.seq)), CompareKind::kGradient),
                  least_tolerance(Dtype::kFp64));
  const Outcome pack = train(options, pack_documents(views(text), *options.seq)),
                pad = train(options, pad_documents(views(text), *options.seq));
  verdict.claim(
      make_claim("packing: flops for three documents that fill a row, padded / packed", 3, pad.flops() / pack.flops()));
}

}  // namespace

void packing_experiment(const Options& given, Verdict& verdict) {
  Options options = given;
  options.dropout = 0;
  options.recompute = "none";
  options.load.clear();  // a file of weights may fix the length of a row
  compare_three_documents(options, verdict);

  const GptConfig model = model_config(options);
  const Text text = leading_documents(options);
  const Outcome pad = train(options, pad_documents(views(text), model.seq)),
                pack = train(options, pack_documents(views(text), model.seq));
  verdict.claim(make_claim("packing: labels trained on in an epoch, packed against padded", static_cast<double>(pad.labels()),
                           static_cast<double>(pack.labels()), 0, "labels"));
  // A token costs 6 flops per weight that it is multiplied with. What is beyond that of the useful ones was spent on padding.
  auto wasted = [&](const Outcome& o) {
    return 1 - 6.0 * static_cast<double>(model.matmul_parameter_count() * o.stats.useful_tokens) / o.flops();
  };
  for (const auto& [name, o] : {std::pair{"padded", &pad}, {"packed", &pack}}) {
    verdict.claim(make_claim(fmt::format("packing: share of the flops spent on padding, {}", name), o->stats.wasted_share,
                             wasted(*o), 1e-12));
  }
  if (options.quiet) return;
  fmt::print("\nPacking the first {} documents of the text into rows of {}\n", text.size(), model.seq);
  fmt::print("  {:<8} {:>8} {:>14} {:>14} {:>13} {:>16}\n", "", "rows", "useful tokens", "padding", "flops wasted",
             "labels / s");
  for (const auto& [name, o] : {std::pair{"padded", &pad}, {"packed", &pack}}) {
    fmt::print("  {:<8} {:>8} {:>14} {:>14} {:>12.1f}% {:>16.0f}\n", name, o->stats.rows, o->stats.useful_tokens,
               o->stats.padded_tokens, 100 * wasted(*o), o->labels_per_second());
  }
}

}  // namespace ref5d::grad_accum
