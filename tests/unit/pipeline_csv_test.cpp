// Schedules as CSV: there and back, and what is no schedule.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "05_pipeline/schedule_csv.h"
#include "common/io/file.h"
#include "tests/support/pipeline_schedules_testing.h"

namespace ref5d::testing {
namespace pipeline_csv_test {

using namespace pipeline;

std::string csv_fault(const std::string& csv) {
  return input_error_of([&] { (void)parse_csv(csv, "my.csv"); });
}

TEST(ScheduleCsv, ThereAndBack) {
  for (const Schedule& s : all_schedules(4)) {
    const std::string csv = to_csv(s);
    const Schedule back = parse_csv(csv, "my.csv");
    EXPECT_EQ(back.ranks, s.ranks) << size_text(s);
    EXPECT_EQ(back.stages, s.stages) << size_text(s);
    EXPECT_EQ(back.micro_batches, s.micro_batches) << size_text(s);
    EXPECT_EQ(back.name, "my.csv");
    EXPECT_EQ(to_csv(back), csv);
  }
}

TEST(ScheduleCsv, AsPyTorchWritesIt) {
  EXPECT_EQ(to_csv(schedule_of("1f1b", 2, 2)), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(to_csv(schedule_of("zb-h1", 1, 1)), "0F0,0I0,0W0\n");
  EXPECT_NE(to_csv(schedule_of("dualpipev", 2, 4)).find(",(0F3;3B1)OVERLAP_F_B,"), std::string::npos);
}

TEST(ScheduleCsv, EmptyCellsAreIdleTime) {
  const Schedule s = parse_csv("0F0,0F1,, ,0B0,,0B1\r\n,1F0,1B0,1F1,1B1,,\r\n", "my.csv");
  EXPECT_EQ(s.ranks, schedule_of("1f1b", 2, 2).ranks);
  EXPECT_EQ(parse_csv(" 0F0 ,\"0B0\"", "my.csv").ranks, schedule_of("1f1b", 1, 1).ranks);
}

TEST(ScheduleCsv, LargeNumbers) {
  const Schedule s = parse_csv("12F345,12B345", "my.csv");
  EXPECT_EQ(s.ranks[0][0].operation, (Operation{12, Pass::kForward, 345}));
  EXPECT_EQ(s.stages, 13);
  EXPECT_EQ(s.micro_batches, 346);
}

TEST(ScheduleCsv, WhatIsNoOperationIsNamedByRowAndCell) {
  EXPECT_EQ(csv_fault("0F0,0B0\n1F0,1X0\n"),
            "my.csv, row 2, cell 2: \"1X0\" is no operation; write 2F0 (stage, F, B, I or W, micro-batch), "
            "(2F4;5B1)OVERLAP_F_B, or nothing");
  for (const char* bad : {"F0",
                          "0F",
                          "0f0",
                          "-1F0",
                          "0F-1",
                          "0F0x",
                          "+0F0",
                          "0 F0",
                          "0F 0",
                          "0F0 0B0",
                          "99999999999F0",
                          "1000000F0",
                          "0F1000000",
                          "(0F0;0B0)",
                          "(0F0)OVERLAP_F_B",
                          "0F0;0B0",
                          "(0F0;1B0;2B0)OVERLAP_F_B",
                          "(0B0;0F0)OVERLAP_F_B",
                          "(0F0;0I0)OVERLAP_F_B",
                          "()OVERLAP_F_B",
                          "(",
                          "(;)OVERLAP_F_B",
                          "0SEND_F0",
                          "0UNSHARD",
                          "0F0 ;"}) {
    EXPECT_NE(csv_fault("0F0,,0B0\n,," + std::string(bad))
                  .find("my.csv, row 2, cell 3: \"" + std::string(bad) + "\" is no operation"),
              std::string::npos)
        << bad << ": " << csv_fault("0F0,,0B0\n,," + std::string(bad));
  }
}

TEST(ScheduleCsv, EmptyRowsAndFilesAreRefused) {
  EXPECT_EQ(csv_fault("0F0,0B0\n,,\n"), "my.csv, row 2: it has no operation; each row is a rank, and every rank needs a stage");
  EXPECT_NE(csv_fault("").find("my.csv, row 1: it has no operation"), std::string::npos);
  EXPECT_NE(csv_fault("\n\n").find("row 1"), std::string::npos);
}

class ScheduleCsvFile : public ::testing::Test {
 protected:
  void write(const std::string& csv) const { write_file(path_, csv); }
  [[nodiscard]] ScheduleOptions custom(int ranks, int micro_batches) const {
    ScheduleOptions options;
    options.name = "custom";
    options.ranks = ranks;
    options.micro_batches = micro_batches;
    options.file = path_;
    return options;
  }
  ~ScheduleCsvFile() override { std::filesystem::remove(path_); }

  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("ref5d_schedule_" + std::to_string(getpid()) + ".csv")).string();
};

TEST_F(ScheduleCsvFile, ACustomScheduleIsReadFromIt) {
  const Schedule s = schedule_of("dualpipev", 2, 4);
  write(to_csv(s));
  const Schedule read = make_schedule(custom(2, 4));
  EXPECT_EQ(read.ranks, s.ranks);
  EXPECT_EQ(read.stages, 4);
  EXPECT_EQ(read.name, path_);
}

TEST_F(ScheduleCsvFile, OneOfOtherSizesIsRefused) {
  write(to_csv(schedule_of("1f1b", 2, 4)));
  EXPECT_EQ(input_error_of([&] { (void)make_schedule(custom(3, 4)); }),
            path_ + " is a schedule of 2 ranks and 4 micro-batches; 3 and 4 were asked for, give --pp 2 and --micro-batches 4");
  EXPECT_NE(input_error_of([&] { (void)make_schedule(custom(2, 5)); }), "");
}

TEST_F(ScheduleCsvFile, OneThatIsNotWholeIsRefusedByItsName) {
  write("0F0,0B0\n1F0\n");
  EXPECT_EQ(input_error_of([&] { (void)make_schedule(custom(2, 1)); }),
            "schedule " + path_ + ": 1B0 is missing; after 1F0 it needs 1B0, or 1I0 and later 1W0");
}

TEST_F(ScheduleCsvFile, OneThatIsMissingIsRefused) {
  EXPECT_NE(input_error_of([&] { (void)read_csv(path_); }), "");
}

}  // namespace pipeline_csv_test
}  // namespace ref5d::testing
