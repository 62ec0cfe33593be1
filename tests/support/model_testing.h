// Help for testing the model: small configurations of every kind, rows with uneven labels, and gradients by name.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/model/gpt.h"
#include "common/tensor/ignore_label.h"
#include "common/train/trainer.h"
#include "common/verify/compare.h"

namespace ref5d::testing {

inline GptConfig small(const std::string& base = "tiny") {
  GptConfig c = preset(base);
  c.vocab = 11;
  c.hidden = 12;
  c.layers = 2;
  c.heads = base == "tiny" ? 6 : 3;
  c.kv_heads = base == "tiny" ? 2 : 3;
  c.ffn = 10;
  c.seq = 7;
  c.init_std = 0.3;
  return c;
}

// Rows whose labels are unevenly ignored; the first row is two documents.
inline std::vector<Row> some_rows(const GptConfig& c, std::int64_t count, unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::vector<Row> rows(static_cast<std::size_t>(count));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::int64_t t = 0; t < c.seq; ++t) {
      rows[r].tokens.push_back(static_cast<std::int32_t>(generator() % static_cast<unsigned>(c.vocab)));
      rows[r].labels.push_back(
          generator() % (r + 2) == 0 ? kIgnoreLabel : static_cast<std::int32_t>(generator() % static_cast<unsigned>(c.vocab)));
      rows[r].order.push_back(static_cast<std::int32_t>(t));
      rows[r].start.push_back(r == 0 && t >= 3 ? 3 : 0);
    }
  }
  return rows;
}

inline TrainerOptions options_for(const GptConfig& c, std::int64_t batch, std::int64_t micro_batch) {
  TrainerOptions o;
  o.model = c;
  o.storage.dtype = Dtype::kFp64;
  o.global_batch = batch;
  o.micro_batch = micro_batch;
  return o;
}

inline NamedValues gradients_of(const TrainerOptions& o, const Dataset& data) {
  Trainer trainer(o, data);
  trainer.accumulate();
  return trainer.gradients();
}

inline void expect_equal(const NamedValues& a, const NamedValues& b, double tolerance) {
  for (const NamedError& e : compare_sets(a, b, CompareKind::kGradient))
    EXPECT_LE(e.error.relative, tolerance) << e.name << " " << e.note;
}

inline GptConfig variant(const std::string& name) {
  GptConfig c = small(name.starts_with("gpt2") ? "tiny-gpt2" : "tiny");
  if (name == "llama_qk_norm") c.qk_norm = true;
  if (name == "llama_tied") c.tied = true;
  if (name == "llama_biases") c.biases = true;
  if (name == "llama_dropout") c.dropout = 0.3;
  if (name == "llama_mixed") {  // Llama's names, everything else as in GPT-2
    c.norm = NormKind::kLayer;
    c.position = PositionKind::kLearned;
    c.mlp = MlpKind::kGelu;
    c.biases = c.tied = true;
  }
  if (name == "gpt2_mixed") {  // and the reverse, but for the gate, which GPT-2 has no name for
    c.norm = NormKind::kRms;
    c.position = PositionKind::kRope;
    c.biases = c.tied = false;
  }
  if (name == "gpt2_untied") c.tied = false;
  if (name == "gpt2_dropout") c.dropout = 0.2;
  return c;
}

}  // namespace ref5d::testing
