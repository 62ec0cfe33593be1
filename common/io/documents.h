// Documents in a token stream, and the rows of S tokens that a model is trained on.
//
// The conventions of a row, which the data loader, attention and the loss share:
//   order[t] = t           the token's index in the row (it stays with the token when context parallelism moves it)
//   start[t]               order of the first token, in this row, of t's document
//   order[t] - start[t]    the token's position in its document (RoPE, learned positions)
//   q sees k               exactly if start[q] <= order[k] <= order[q]: causal, and within the document
//   labels[t]              the next token of the same document, or kIgnoreLabel at the document's end
// A document that is cut at the end of a row goes on in the next row as a new document there (its positions begin at 0
// again), but the label of the last token before the cut is known and kept. A padding token is 0, has no label, and is a
// document of its own (start = order), so that no row of the attention matrix is empty.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/tensor/ignore_label.h"

namespace ref5d {

// A document is a view of a stretch of the token stream, which must outlive it.
using Document = std::span<const std::int32_t>;

// What stands between documents; it stays with the document that it ends, or begins.
struct DocumentSeparator {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> repeats;  // further copies of these that follow it stay with it; empty: none do
  bool begins = false;                // whether it is the first of the next document, not the last of the one before

  // For text: a blank line, "\n\n" and the newlines that follow it.
  [[nodiscard]] static DocumentSeparator blank_line() { return {{'\n', '\n'}, {'\n'}, false}; }
  // The same in a text whose lines end in carriage return and newline.
  [[nodiscard]] static DocumentSeparator crlf_blank_line() { return {{'\r', '\n', '\r', '\n'}, {'\r', '\n'}, false}; }
  // For tokenised text: a token after each document, or before each.
  [[nodiscard]] static DocumentSeparator end_of_text(std::int32_t token) { return {{token}, {}, false}; }
  [[nodiscard]] static DocumentSeparator begin_of_text(std::int32_t token) { return {{token}, {}, true}; }
};

// Cuts a token stream after (or before) every separator; the documents joined are the stream again. What follows the last
// separator (or precedes the first) is a document without one. Throws InputError for an empty separator.
[[nodiscard]] std::vector<Document> split_documents(std::span<const std::int32_t> tokens, const DocumentSeparator& separator);
std::vector<Document> split_documents(std::vector<std::int32_t>&&, const DocumentSeparator&) = delete;  // would dangle

// One row: four arrays of length S, and how many of its tokens come before the padding.
struct Row {
  std::vector<std::int32_t> tokens, labels, order, start;
  std::int64_t useful = 0;
};

// Rows in which documents follow each other, in order; only the last row may end in padding. Nothing is lost: a document
// longer than what remains of a row is cut. Throws InputError if seq < 1.
[[nodiscard]] std::vector<Row> pack_documents(std::span<const Document> documents, std::int64_t seq);

// Rows of one document each, the rest padding; a document longer than seq is cut into several rows.
[[nodiscard]] std::vector<Row> pad_documents(std::span<const Document> documents, std::int64_t seq);

// The window [offset, offset + seq) of a stream, as one document. The last label is the token after the window, or
// kIgnoreLabel where the stream ends. Throws InputError if the window leaves the stream.
[[nodiscard]] Row plain_row(std::span<const std::int32_t> tokens, std::int64_t offset, std::int64_t seq);

struct PackingStats {
  std::int64_t rows = 0;
  std::int64_t useful_tokens = 0;
  std::int64_t padded_tokens = 0;
  std::int64_t total_tokens = 0;  // rows * seq
  double wasted_share = 0;        // padded / total; 0 for no rows
};
[[nodiscard]] PackingStats packing_stats(std::span<const Row> rows);

}  // namespace ref5d
