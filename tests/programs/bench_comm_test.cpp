// bench_comm: a row for each operation and size, and one line for what is wrong.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/io_testing.h"
#include "tests/support/program_testing.h"

namespace ref5d::testing {
namespace {

Outcome bench(const std::string& flags, int ranks) {
  RunOptions options;
  options.ranks = ranks;
  return run_binary("bench_comm", words(flags), options);
}

// The table's rows: operation, bytes, median, best, algorithm bandwidth, bus bandwidth.
std::vector<std::vector<std::string>> rows_of(const std::string& out) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> row = words(line);
    if (row.size() == 6 && row[1].find_first_not_of("0123456789") == std::string::npos) rows.push_back(row);
  }
  return rows;
}

TEST(BenchComm, ARowForEachOperationAndSize) {
  const Outcome run = bench("--min-bytes 4096 --max-bytes 65536 --repeats 5", 2);
  EXPECT_EQ(run.exit_status, 0) << run.description();
  const auto rows = rows_of(run.out);
  ASSERT_EQ(rows.size(), 6u * 3) << run.out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i][1], (std::vector<std::string>{"4096", "16384", "65536"}[i % 3])) << run.out;
    const double us = std::stod(rows[i][2]), algorithm = std::stod(rows[i][4]), bus = std::stod(rows[i][5]);
    EXPECT_GT(std::stod(rows[i][3]), 0);
    EXPECT_LE(std::stod(rows[i][3]), us);
    EXPECT_NEAR(algorithm, std::stod(rows[i][1]) / us / 1e3, 1e-4 + (0.06 / us + 0.01) * algorithm)
        << run.out;  // us has tenths
    // On two ranks an all-reduce moves the array once, and what takes half as much is half as wide.
    const bool half = rows[i][0] == "reduce_scatter" || rows[i][0].starts_with("all_gather") || rows[i][0] == "all_to_all";
    EXPECT_NEAR(bus, algorithm * (half ? 0.5 : 1), 1e-4 + 0.02 * algorithm) << run.out;
  }
}

TEST(BenchComm, ArraysAreMultiplesOfTheRanks) {
  const Outcome run = bench("--min-bytes 64 --max-bytes 64 --repeats 2 --operation all_gather", 3);
  EXPECT_EQ(run.exit_status, 0) << run.description();
  ASSERT_EQ(rows_of(run.out).size(), 1u) << run.out;
  EXPECT_EQ(rows_of(run.out)[0][1], "72");
}

TEST(BenchComm, WhatIsWrongTakesOneLine) {
  expect_one_error(bench("", 1), 2, {"several", "mpiexec"});
  expect_one_error(bench("--min-bytes 3", 2), 2, {"--min-bytes", "3"});
  expect_one_error(bench("--min-bytes 128 --max-bytes 64", 2), 2, {"--max-bytes 64", "128"});
  expect_one_error(bench("--operation gossip", 2), 2, {"gossip", "all_reduce"});
  expect_one_error(bench("--frobnicate", 2), 2, {"--frobnicate"});
}

}  // namespace
}  // namespace ref5d::testing
