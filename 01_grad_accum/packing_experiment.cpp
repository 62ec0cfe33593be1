// Short documents: one per row with padding, or packed one after the other with boundaries that attention does not cross.
#include <fmt/core.h>

#include "01_grad_accum/experiments.h"
#include "common/app/settings.h"
#include "common/verify/compare.h"

namespace ref5d::grad_accum {

namespace {

struct Outcome {
  PackingStats stats;
  RunRecord record;
  [[nodiscard]] double useful_per_second() const {  // valid labels over all steps, per second
    double labels = 0, ms = 0;
    for (const StepResult& s : record.steps) {
      labels += static_cast<double>(s.valid_tokens);
      ms += s.ms;
    }
    return labels / ms * 1e3;
  }
};

Outcome train(Options options, const char* documents) {
  options.documents = documents;
  const GptConfig model = model_config(options);
  const Dataset data(dataset_options(options, model));
  Outcome o;
  std::vector<Row> rows;
  for (std::int64_t i = 0; i < data.rows(); ++i) rows.push_back(data.row(i));
  o.stats = packing_stats(rows);
  Trainer trainer(trainer_options(options, model), data);
  o.record = record_run(trainer, 8, 0);
  return o;
}

// The same three documents in one packed row and in three padded rows: the gradient must be the same.
NamedValues gradients_of(const Options& options, std::vector<Row> rows) {
  const GptConfig model = model_config(options);
  TrainerOptions t = trainer_options(options, model);
  t.storage.dtype = Dtype::kFp64;
  t.micro_batch = t.global_batch = static_cast<std::int64_t>(rows.size());
  const Dataset data(std::move(rows));
  Trainer trainer(t, data);
  trainer.accumulate();
  return trainer.gradients();
}

}  // namespace

void packing_experiment(const Options& given, Verdict& verdict) {
  Options options = given;
  options.dropout = 0;
  const GptConfig model = model_config(options);

  // Three documents that fill a row exactly: 7/16, 5/16 and 4/16 of it.
  options.seq = std::max<std::int64_t>(16, model.seq / 16 * 16);
  std::vector<std::int32_t> text(static_cast<std::size_t>(*options.seq));
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<std::int32_t>((i * 37 + 11) % static_cast<std::size_t>(model.vocab));
  const std::size_t unit = text.size() / 16;
  const std::span<const std::int32_t> all = text;
  const std::vector<Document> documents{all.subspan(0, 7 * unit), all.subspan(7 * unit, 5 * unit),
                                        all.subspan(12 * unit, 4 * unit)};
  const std::vector<Row> packed = pack_documents(documents, *options.seq), padded = pad_documents(documents, *options.seq);
  verdict.claim(make_claim("packing: rows for three documents, packed", 1, static_cast<double>(packed.size())));
  verdict.claim(make_claim("packing: rows for three documents, padded", 3, static_cast<double>(padded.size())));
  verdict.add_set("packed against padded gradients",
                  compare_sets(gradients_of(options, packed), gradients_of(options, padded), CompareKind::kGradient),
                  least_tolerance(Dtype::kFp64));

  options.seq = given.seq;
  const Outcome pad = train(options, "pad"), pack = train(options, "pack");
  verdict.claim(make_claim("packing: useful tokens, packed against padded", static_cast<double>(pad.stats.useful_tokens),
                           static_cast<double>(pack.stats.useful_tokens), 0, "tokens"));
  // What is wasted is what is not useful, counted from the rows.
  auto wasted = [](const PackingStats& s) {
    return 1.0 - static_cast<double>(s.useful_tokens) / static_cast<double>(s.total_tokens);
  };
  verdict.claim(
      make_claim("packing: share of the tokens that is padding, padded", wasted(pad.stats), pad.stats.wasted_share, 1e-12));
  verdict.claim(
      make_claim("packing: share of the tokens that is padding, packed", wasted(pack.stats), pack.stats.wasted_share, 1e-12));
  if (options.quiet) return;
  fmt::print("\nPacking the documents of the text into rows of {}\n", model.seq);
  fmt::print("  {:<8} {:>8} {:>14} {:>14} {:>10} {:>16}\n", "", "rows", "useful tokens", "padding", "wasted", "useful tok/s");
  for (const auto& [name, o] : {std::pair{"padded", &pad}, {"packed", &pack}}) {
    fmt::print("  {:<8} {:>8} {:>14} {:>14} {:>9.1f}% {:>16.0f}\n", name, o->stats.rows, o->stats.useful_tokens,
               o->stats.padded_tokens, 100 * o->stats.wasted_share, o->useful_per_second());
  }
}

}  // namespace ref5d::grad_accum
