#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string_view>

#include "common/device/error.h"
#include "common/io/documents.h"
#include "tests/support/io_testing.h"

namespace ref5d {
namespace {

using testing::error_of;
using testing::expect_contains;
using Tokens = std::vector<std::int32_t>;

Tokens text(std::string_view s) { return {s.begin(), s.end()}; }

Tokens counting(std::size_t n) {  // 1, 2, 3, …: every token tells where it came from, none looks like padding
  Tokens tokens(n);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

std::vector<Document> cut(const Tokens& tokens, const std::vector<std::size_t>& lengths) {
  std::vector<Document> documents;
  std::size_t at = 0;
  for (const std::size_t n : lengths) {
    documents.push_back(Document(tokens).subspan(at, n));
    at += n;
  }
  return documents;
}

std::vector<std::size_t> lengths_of(const std::vector<Document>& documents) {
  std::vector<std::size_t> out;
  for (const Document d : documents) out.push_back(d.size());
  return out;
}

// What every row must satisfy whatever made it. Returns the useful tokens, joined.
Tokens check_rows(const std::vector<Row>& rows, std::int64_t seq) {
  Tokens joined;
  const auto length = static_cast<std::size_t>(seq);
  for (const Row& row : rows) {
    EXPECT_EQ(row.tokens.size(), length);
    EXPECT_EQ(row.labels.size(), length);
    EXPECT_EQ(row.order.size(), length);
    EXPECT_EQ(row.start.size(), length);
    EXPECT_GE(row.useful, 1);
    EXPECT_LE(row.useful, seq);
    for (std::size_t t = 0; t < length; ++t) {
      EXPECT_EQ(row.order[t], static_cast<std::int32_t>(t));
      EXPECT_LE(row.start[t], row.order[t]);
      if (t >= static_cast<std::size_t>(row.useful)) {
        EXPECT_EQ(row.tokens[t], 0);
        EXPECT_EQ(row.labels[t], kIgnoreLabel);
        EXPECT_EQ(row.start[t], row.order[t]);
        continue;
      }
      joined.push_back(row.tokens[t]);
      if (t == 0) {
        EXPECT_EQ(row.start[0], 0);
        continue;
      }
      const bool begins = row.start[t] == row.order[t];
      EXPECT_TRUE(begins || row.start[t] == row.start[t - 1]);
      EXPECT_EQ(row.labels[t - 1],
                begins ? kIgnoreLabel : row.tokens[t]);  // within a row, a document ends where the next begins
    }
  }
  return joined;
}

TEST(IoDocuments, SplitsTextAtBlankLines) {
  const Tokens tokens = text("one\ntwo\n\nthree\n\n\n\nfour");
  const auto documents = split_documents(tokens, DocumentSeparator::blank_line());
  EXPECT_EQ(lengths_of(documents), (std::vector<std::size_t>{9, 9, 4}));
  EXPECT_EQ(documents[1].back(), '\n');
  EXPECT_TRUE(split_documents(Document(), DocumentSeparator::blank_line()).empty());
  const Tokens ends = text("a\n\n");
  EXPECT_EQ(lengths_of(split_documents(ends, DocumentSeparator::blank_line())), (std::vector<std::size_t>{3}));
  const Tokens no_blank = text("a\nb\n");
  EXPECT_EQ(lengths_of(split_documents(no_blank, DocumentSeparator::blank_line())), (std::vector<std::size_t>{4}));
}

TEST(IoDocuments, SplitsAtTheEndOfTextToken) {
  const Tokens tokens = {5, 6, 99, 7, 99, 99, 8};
  EXPECT_EQ(lengths_of(split_documents(tokens, DocumentSeparator::end_of_text(99))), (std::vector<std::size_t>{3, 2, 1, 1}));
  EXPECT_EQ(lengths_of(split_documents(tokens, DocumentSeparator::end_of_text(1))), (std::vector<std::size_t>{7}));
  expect_contains(error_of<InputError>([&] { (void)split_documents(tokens, DocumentSeparator{}); }), "separator");
}

TEST(IoDocuments, SplittingLosesNothing) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    Tokens tokens(random() % 40);
    for (auto& t : tokens) t = random() % 2 == 0 ? int{'\n'} : int{'a'};
    for (const auto& separator : {DocumentSeparator::blank_line(), DocumentSeparator::end_of_text('\n')}) {
      Tokens joined;
      for (const Document d : split_documents(tokens, separator)) {
        ASSERT_FALSE(d.empty());
        joined.insert(joined.end(), d.begin(), d.end());
      }
      ASSERT_EQ(joined, tokens);
    }
  }
}

// The documents of T9 in one row of 16.
TEST(IoDocuments, PacksDocumentsWithTheirPositionsAndLabels) {
  Tokens tokens(16);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto rows = pack_documents(cut(tokens, {7, 5, 4}), 16);
  ASSERT_EQ(rows.size(), 1u);
  const std::int32_t none = kIgnoreLabel;
  EXPECT_EQ(rows[0].tokens, tokens);
  EXPECT_EQ(rows[0].labels, (Tokens{1, 2, 3, 4, 5, 6, none, 8, 9, 10, 11, none, 13, 14, 15, none}));
  EXPECT_EQ(rows[0].start, (Tokens{0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 12, 12, 12, 12}));
  EXPECT_EQ(rows[0].order, tokens);
  EXPECT_EQ(rows[0].useful, 16);
}

TEST(IoDocuments, ADocumentCutByTheRowGoesOn) {
  const Tokens tokens = counting(11);
  const auto rows = pack_documents(cut(tokens, {3, 7, 1}), 4);
  const std::int32_t none = kIgnoreLabel;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].tokens, (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(rows[0].labels, (Tokens{2, 3, none, 5}));  // the label beyond the row is known
  EXPECT_EQ(rows[0].start, (Tokens{0, 0, 0, 3}));
  EXPECT_EQ(rows[1].labels, (Tokens{6, 7, 8, 9}));
  EXPECT_EQ(rows[1].start, (Tokens{0, 0, 0, 0}));
  EXPECT_EQ(rows[2].tokens, (Tokens{9, 10, 11, 0}));
  EXPECT_EQ(rows[2].labels, (Tokens{10, none, none, none}));
  EXPECT_EQ(rows[2].start, (Tokens{0, 0, 2, 3}));
  EXPECT_EQ(rows[2].useful, 3);
}

TEST(IoDocuments, PadsOneDocumentPerRow) {
  const Tokens tokens = counting(9);
  const auto rows = pad_documents(cut(tokens, {2, 4, 0, 3}), 3);
  const std::int32_t none = kIgnoreLabel;
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].tokens, (Tokens{1, 2, 0}));
  EXPECT_EQ(rows[0].labels, (Tokens{2, none, none}));
  EXPECT_EQ(rows[0].start, (Tokens{0, 0, 2}));
  EXPECT_EQ(rows[1].labels, (Tokens{4, 5, 6}));
  EXPECT_EQ(rows[2].tokens, (Tokens{6, 0, 0}));
  EXPECT_EQ(rows[2].labels, (Tokens{none, none, none}));
  EXPECT_EQ(rows[2].start, (Tokens{0, 1, 2}));
  EXPECT_EQ(rows[3].tokens, (Tokens{7, 8, 9}));
  const PackingStats stats = packing_stats(rows);
  EXPECT_EQ(stats.rows, 4);
  EXPECT_EQ(stats.useful_tokens, 9);
  EXPECT_EQ(stats.padded_tokens, 3);
  EXPECT_EQ(stats.total_tokens, 12);
  EXPECT_EQ(stats.wasted_share, 0.25);
  EXPECT_EQ(packing_stats({}).wasted_share, 0);
}

TEST(IoDocuments, EveryPlacementKeepsTheRules) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::size_t> lengths(random() % 7);
    for (auto& n : lengths) n = random() % 12;
    const Tokens tokens = counting(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}));
    const auto documents = cut(tokens, lengths);
    const auto seq = static_cast<std::int64_t>(1 + random() % 9);
    const auto packed = pack_documents(documents, seq);
    const auto padded = pad_documents(documents, seq);
    ASSERT_EQ(check_rows(packed, seq), tokens);
    ASSERT_EQ(check_rows(padded, seq), tokens);
    const auto total = static_cast<std::int64_t>(tokens.size());
    ASSERT_EQ(std::ssize(packed), (total + seq - 1) / seq);  // only the last row may have padding
    // Each token but a document's last has its label, in every placement.
    std::int64_t labels = total;
    for (const std::size_t n : lengths) labels -= n > 0 ? 1 : 0;
    for (const auto* rows : {&packed, &padded}) {
      std::int64_t valid = 0;
      for (const Row& row : *rows) {
        for (std::size_t t = 0; t < row.tokens.size(); ++t) {
          if (row.labels[t] == kIgnoreLabel) continue;
          ++valid;
          ASSERT_EQ(row.labels[t], row.tokens[t] + 1);
        }
      }
      ASSERT_EQ(valid, labels);
      ASSERT_EQ(packing_stats(*rows).useful_tokens, total);
    }
  }
}

TEST(IoDocuments, PlainRowIsAWindow) {
  const Tokens tokens = counting(10);
  for (std::int64_t seq = 1; seq <= 10; ++seq) {
    for (std::int64_t offset = 0; offset + seq <= 10; ++offset) {
      const Row row = plain_row(tokens, offset, seq);
      ASSERT_EQ(check_rows({row}, seq).front(), offset + 1);
      ASSERT_EQ(row.useful, seq);
      ASSERT_EQ(row.start, Tokens(static_cast<std::size_t>(seq), 0));
      ASSERT_EQ(row.labels.back(), offset + seq < 10 ? offset + seq + 1 : kIgnoreLabel);
    }
  }
  for (const auto& [offset, seq] : {std::pair<std::int64_t, std::int64_t>{0, 11}, {7, 4}, {11, 1}, {-1, 2}}) {
    expect_contains(error_of<InputError>([&, at = offset, n = seq] { (void)plain_row(tokens, at, n); }), "the data has 10");
  }
}

TEST(IoDocuments, RowsNeedATokenAtLeast) {
  const Tokens tokens = counting(3);
  for (const std::int64_t seq : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31}) {
    expect_contains(error_of<InputError>([&] { (void)pack_documents(cut(tokens, {3}), seq); }), "at least 1");
    expect_contains(error_of<InputError>([&] { (void)pad_documents(cut(tokens, {3}), seq); }), "at least 1");
    expect_contains(error_of<InputError>([&] { (void)plain_row(tokens, 0, seq); }), "at least 1");
  }
}

}  // namespace
}  // namespace ref5d
