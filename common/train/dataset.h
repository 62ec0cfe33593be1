// Training data: rows of tokens in the order of their global sample index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/io/documents.h"
#include "common/io/tokens.h"

namespace ref5d {

struct DatasetOptions {
  std::string path;                // empty: the suite's own lesson pages
  std::string documents = "none";  // none: windows of one stream | pack: documents packed with boundaries | pad: one per row
  std::int64_t seq = 64, vocab = 256;
  std::uint64_t seed = 1;  // of the order of rows
};

// The rows of a training set. Sample i is row i of an endless sequence of epochs, each a permutation of all rows that depends
// on the seed alone, so every rank finds its own samples without asking.
class Dataset {
 public:
  // Reads and checks the file. Throws InputError: missing, truncated, too short for one row, a token beyond the vocabulary,
  // no label at all.
  explicit Dataset(const DatasetOptions& options);
  // These rows, in this order, over and over.
  explicit Dataset(std::vector<Row> rows) : rows_(std::move(rows)), row_count_(static_cast<std::int64_t>(rows_.size())) {}

  [[nodiscard]] Row sample(std::int64_t index) const;
  [[nodiscard]] std::int64_t rows() const { return row_count_; }
  // Row i of an epoch before shuffling.
  [[nodiscard]] Row row(std::int64_t i) const;
  [[nodiscard]] const std::string& description() const { return description_; }
  // Of all rows before shuffling, as 16 hex digits: equal for equal data, and with all likelihood only then.
  [[nodiscard]] std::string fingerprint() const;

 private:
  // Documents are cut into rows once; a plain stream, which may be long, row by row as they are asked for.
  std::vector<Row> rows_;
  TokenStream stream_;
  std::int64_t seq_ = 0, row_count_ = 0;
  bool shuffled_ = false;
  std::uint64_t seed_ = 0;
  std::string description_;
  mutable std::int64_t epoch_ = -1;
  mutable std::vector<std::int32_t> order_;  // of epoch_
};

// The text built into the program.
[[nodiscard]] std::string_view default_text();

// The samples of one optimizer step: all replicas, all micro-batches.
struct GlobalBatch {
  std::int64_t first_sample = 0;
  std::vector<Row> rows;
  std::int64_t valid_labels = 0;
  std::int64_t replicas = 1;  // of the model, that share the batch: auxiliary losses are the mean over all their micro-batches

  // The one division of the law of gradients: the loss is summed over valid labels and divided by their number in the global
  // batch. A batch without a valid label has loss 0 and gradient 0.
  [[nodiscard]] double loss_scale() const { return valid_labels == 0 ? 0.0 : 1.0 / static_cast<double>(valid_labels); }
};
// Step `step` (0-based) takes samples step * size .. (step + 1) * size - 1.
[[nodiscard]] GlobalBatch global_batch(const Dataset& data, std::int64_t step, std::int64_t size);
[[nodiscard]] std::int64_t count_valid_labels(const Row& row);

}  // namespace ref5d
