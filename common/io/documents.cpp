#include "common/io/documents.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/device/error.h"

namespace ref5d {
namespace {

void check_seq(std::int64_t seq) {
  if (seq < 1 || seq > std::numeric_limits<std::int32_t>::max()) {
    throw InputError(fmt::format("a row of {} tokens is asked for; at least 1 and less than 2^31 are possible", seq));
  }
}

// Appends tokens [from, from + count) of a document to a row, as one document there.
void append_piece(Row& row, Document document, std::size_t from, std::size_t count) {
  const auto start = static_cast<std::int32_t>(row.tokens.size());
  for (std::size_t i = from; i < from + count; ++i) {
    row.order.push_back(static_cast<std::int32_t>(row.tokens.size()));
    row.start.push_back(start);
    row.tokens.push_back(document[i]);
    row.labels.push_back(i + 1 < document.size() ? document[i + 1] : kIgnoreLabel);
  }
  row.useful += static_cast<std::int64_t>(count);
}

void append_padding(Row& row, std::size_t seq) {
  while (row.tokens.size() < seq) {
    const auto order = static_cast<std::int32_t>(row.tokens.size());
    row.order.push_back(order);
    row.start.push_back(order);
    row.tokens.push_back(0);
    row.labels.push_back(kIgnoreLabel);
  }
}

Row empty_row(std::size_t seq) {
  Row row;
  for (auto* array : {&row.tokens, &row.labels, &row.order, &row.start}) array->reserve(seq);
  return row;
}

// Both ways of placing documents: a row is closed when it is full and, unless `share`, at the end of a document.
std::vector<Row> place_documents(std::span<const Document> documents, std::int64_t seq, bool share) {
  check_seq(seq);
  const auto length = static_cast<std::size_t>(seq);
  std::vector<Row> rows;
  Row row = empty_row(length);
  const auto close = [&] {
    append_padding(row, length);
    rows.push_back(std::move(row));
    row = empty_row(length);
  };
  for (const Document document : documents) {
    for (std::size_t from = 0; from < document.size();) {
      const std::size_t count = std::min(document.size() - from, length - row.tokens.size());
      append_piece(row, document, from, count);
      from += count;
      if (row.tokens.size() == length || (from == document.size() && !share)) close();
    }
  }
  if (!row.tokens.empty()) close();
  return rows;
}

}  // namespace

std::vector<Document> split_documents(std::span<const std::int32_t> tokens, const DocumentSeparator& separator) {
  if (separator.tokens.empty()) throw InputError("a document separator of no tokens was given; at least one is needed");
  std::vector<Document> documents;
  for (auto begin = tokens.begin(); begin != tokens.end();) {
    const auto from = separator.begins ? begin + 1 : begin;
    auto end = std::search(from, tokens.end(), separator.tokens.begin(), separator.tokens.end());
    if (end != tokens.end() && !separator.begins) {
      end += static_cast<std::ptrdiff_t>(separator.tokens.size());
      const auto& repeats = separator.repeats;
      const auto size = static_cast<std::ptrdiff_t>(repeats.size());
      while (size > 0 && tokens.end() - end >= size && std::equal(repeats.begin(), repeats.end(), end)) end += size;
    }
    documents.emplace_back(begin, end);
    begin = end;
  }
  return documents;
}

std::vector<Row> pack_documents(std::span<const Document> documents, std::int64_t seq) {
  return place_documents(documents, seq, true);
}

std::vector<Row> pad_documents(std::span<const Document> documents, std::int64_t seq) {
  return place_documents(documents, seq, false);
}

Row plain_row(std::span<const std::int32_t> tokens, std::int64_t offset, std::int64_t seq) {
  check_seq(seq);
  const auto size = static_cast<std::int64_t>(tokens.size());
  if (offset < 0 || offset > size || seq > size - offset) {
    throw InputError(
        fmt::format("{} tokens from position {} are asked for, the data has {}; use less --seq, batch or steps, or more data",
                    seq, offset, size));
  }
  Row row = empty_row(static_cast<std::size_t>(seq));
  // The document runs on to the token after the window, so that the last label is known where there is one.
  const std::int64_t known = std::min(seq + 1, size - offset);
  append_piece(row, tokens.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(known)), 0,
               static_cast<std::size_t>(seq));
  return row;
}

PackingStats packing_stats(std::span<const Row> rows) {
  PackingStats stats;
  stats.rows = static_cast<std::int64_t>(rows.size());
  for (const Row& row : rows) {
    stats.useful_tokens += row.useful;
    stats.total_tokens += static_cast<std::int64_t>(row.tokens.size());
  }
  stats.padded_tokens = stats.total_tokens - stats.useful_tokens;
  if (stats.total_tokens > 0)
    stats.wasted_share = static_cast<double>(stats.padded_tokens) / static_cast<double>(stats.total_tokens);
  return stats;
}

}  // namespace ref5d
