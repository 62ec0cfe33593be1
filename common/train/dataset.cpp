#include "common/train/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "common/device/error.h"
#include "common/io/llmc_model.h"
#include "common/kernels/philox.h"
#include "common/kernels/random.h"
#include "common/tensor/ignore_label.h"
#include "common/train/host_memory.h"

namespace ref5d {
namespace {

// What separates documents in a token file is up to the program that wrote it: llm.c puts a token before each document (GPT-2's
// end-of-text, or Llama 3's begin-of-text), nanoGPT puts GPT-2's after each. Texts have blank lines instead.
DocumentSeparator separator_of(const TokenStream& stream) {
  const std::string& kind = stream.kind;
  constexpr std::int32_t kGpt2EndOfText = 50256, kLlama3BeginOfText = 128000;
  if (kind == "llm.c") return DocumentSeparator::begin_of_text(kGpt2EndOfText);
  if (kind == "llm.c-llama3") return DocumentSeparator::begin_of_text(kLlama3BeginOfText);
  if (kind == "nanogpt") return DocumentSeparator::end_of_text(kGpt2EndOfText);
  const auto newline = std::find(stream.tokens.begin(), stream.tokens.end(), '\n');
  const bool crlf = newline != stream.tokens.begin() && newline != stream.tokens.end() && *(newline - 1) == '\r';
  return crlf ? DocumentSeparator::crlf_blank_line() : DocumentSeparator::blank_line();
}

TokenStream read_stream(const DatasetOptions& options) {
  if (!options.path.empty()) {
    std::error_code error;
    if (std::filesystem::is_regular_file(options.path, error) && is_llmc_model(options.path))
      throw InputError("--data " + options.path + " is a llm.c model, not tokens; give it to --load");
    return load_tokens(options.path);
  }
  TokenStream stream;
  stream.kind = "text";
  for (char c : default_text()) stream.tokens.push_back(static_cast<unsigned char>(c));
  return stream;
}

// Rows of one document each are mostly padding where --seq is long.
void check_padding(std::span<const Document> documents, const DatasetOptions& options) {
  if (options.documents != "pad") return;
  std::int64_t rows = 0;
  for (const Document& d : documents) rows += (static_cast<std::int64_t>(d.size()) + options.seq - 1) / options.seq;
  constexpr double kBytesPerToken = 4 * sizeof(std::int32_t);  // the arrays of a Row
  const double bytes = static_cast<double>(rows) * static_cast<double>(options.seq) * kBytesPerToken;
  if (bytes <= physical_memory_bytes() / 2) return;
  throw InputError("--documents pad makes " + std::to_string(rows) + " rows of " + std::to_string(options.seq) +
                   " tokens, more than half of this machine's memory; use --documents pack or a smaller --seq");
}

std::vector<Row> document_rows(const TokenStream& stream, const DatasetOptions& options) {
  const std::vector<Document> documents = split_documents(stream.tokens, separator_of(stream));
  check_padding(documents, options);
  return options.documents == "pack" ? pack_documents(documents, options.seq) : pad_documents(documents, options.seq);
}

}  // namespace

Dataset::Dataset(const DatasetOptions& options) : shuffled_(true), seed_(options.seed) {
  const std::string name = options.path.empty() ? "the built-in text" : options.path;
  stream_ = read_stream(options);
  check_tokens(stream_.tokens, options.vocab, name);
  if (options.documents ==
      "none") {  // windows that overlap by one token: the last label of a row is the first token of the next
    seq_ = options.seq;
    row_count_ = (static_cast<std::int64_t>(stream_.tokens.size()) - 1) / seq_;
  } else {
    rows_ = document_rows(stream_, options);
    row_count_ = static_cast<std::int64_t>(rows_.size());
  }
  if (row_count_ == 0) {
    throw InputError(name + " has " + std::to_string(stream_.tokens.size()) + " tokens, too few for one row of " +
                     std::to_string(options.seq) + " and its labels; use a longer file or a smaller --seq");
  }
  if (seq_ == 0 && std::all_of(rows_.begin(), rows_.end(), [](const Row& r) { return count_valid_labels(r) == 0; })) {
    throw InputError(name +
                     " has no label: each of its documents is a single token, after which nothing is left to predict; use "
                     "--documents none or another file");
  }
  description_ = name + ": " + std::to_string(stream_.tokens.size()) + " tokens (" + stream_.kind + "), " +
                 std::to_string(row_count_) + " rows of " + std::to_string(options.seq);
}

Row Dataset::row(std::int64_t i) const {
  return seq_ > 0 ? plain_row(stream_.tokens, i * seq_, seq_) : rows_[static_cast<std::size_t>(i)];
}

Row Dataset::sample(std::int64_t index) const {
  const std::int64_t n = rows(), epoch = index / n;
  if (!shuffled_) return row(index % n);
  if (epoch != epoch_) {  // Fisher-Yates with counter-based numbers
    order_.resize(static_cast<std::size_t>(n));
    std::iota(order_.begin(), order_.end(), 0);
    for (std::int64_t i = n - 1; i > 0; --i) {
      const Uint4 u = philox(seed_, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(epoch), 0x73687566u, 0});
      const std::uint64_t wide = (std::uint64_t{u.x} << 32) | u.y;
      std::swap(order_[static_cast<std::size_t>(i)], order_[wide % static_cast<std::uint64_t>(i + 1)]);
    }
    epoch_ = epoch;
  }
  return row(order_[static_cast<std::size_t>(index % n)]);
}

std::int64_t count_valid_labels(const Row& row) {
  return std::count_if(row.labels.begin(), row.labels.end(), [](std::int32_t label) { return label != kIgnoreLabel; });
}

std::string Dataset::fingerprint() const {
  std::uint64_t hash = hash_bytes(std::to_string(seq_));
  const auto add = [&](const std::vector<std::int32_t>& values) {
    hash = hash_bytes({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::int32_t)}, hash);
  };
  if (seq_ > 0) add(stream_.tokens);
  for (const Row& row : rows_) {
    add(row.tokens);
    add(row.labels);
    add(row.start);
  }
  return fmt::format("{:016x}", hash);
}

GlobalBatch global_batch(const Dataset& data, std::int64_t step, std::int64_t size) {
  GlobalBatch batch;
  batch.first_sample = step * size;
  for (std::int64_t i = 0; i < size; ++i) {
    batch.rows.push_back(data.sample(batch.first_sample + i));
    batch.valid_labels += count_valid_labels(batch.rows.back());
  }
  return batch;
}

}  // namespace ref5d
