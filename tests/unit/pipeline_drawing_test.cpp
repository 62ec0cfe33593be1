// Schedules as pictures.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "05_pipeline/drawing.h"
#include "tests/support/pipeline_schedules_testing.h"

namespace ref5d::testing {
namespace pipeline_drawing_test {

using namespace pipeline;

std::vector<std::string> drawn_lines(const Schedule& s, bool colours = false) {
  std::vector<std::string> lines;
  std::istringstream text(draw(s, colours));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::string without_colours(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b')
      i = text.find('m', i);
    else
      plain += text[i];
  }
  return plain;
}

TEST(ScheduleDrawing, OneForwardOneBackward) {
  EXPECT_EQ(draw(schedule_of("1f1b", 2, 3), false),
            "rank 0 |F0 F1 .  .  B0--- F2 B1--- .  B2--- |\n"
            "rank 1 |.  F0 B0--- F1 B1--- F2 B2--- .  .  |\n"
            "time 12, own 12, idle 25.0% | F forward, B backward, and the micro-batch; . idle\n");
}

TEST(ScheduleDrawing, HalvedBackwards) {
  EXPECT_EQ(draw(schedule_of("zb-h1", 2, 3), false),
            "rank 0 |F0 F1 .  I0 W0 F2 I1 W1 I2 W2 |\n"
            "rank 1 |.  F0 I0 F1 I1 W0 F2 I2 W1 W2 |\n"
            "time 10, own 10, idle 10.0% | F forward, I input gradient, W weight gradient, and the micro-batch; . idle\n");
}

TEST(ScheduleDrawing, TwoStagesAndCellsOfTwo) {
  EXPECT_EQ(
      draw(schedule_of("dualpipev", 2, 4), false),
      "rank 0 |F0 F1 F2 f0 i0 w0 f1 F3&b1--- .  f2&B0--- b2--- .  f3&B1--- b3--- I2 W2 I3 W3 |\n"
      "rank 1 |.  F0 f0 F1 f1 F2 b0--- f2&B0--- F3&b1--- f3&B1--- b2--- B2--- .  i3 I3 w3 W3 |\n"
      "time 26, own 26, idle 7.7% | F forward, B backward, I input gradient, W weight gradient, F&B both in turns, and the "
      "micro-batch; small letters: the rank's second stage; . idle\n");
}

TEST(ScheduleDrawing, MoreStagesHaveTheirNumbers) {
  const auto lines = drawn_lines(schedule_of("interleaved", 2, 2, 3));
  EXPECT_NE(lines[0].find("0F0 0F1 2F0 2F1 4F0 4F1 "), std::string::npos) << lines[0];
  EXPECT_NE(lines[2].find("after the stage"), std::string::npos);
}

TEST(ScheduleDrawing, RowsAreAlignedAndShowEveryOperation) {
  for (const Schedule& s : all_schedules(4)) {
    const auto lines = drawn_lines(s);
    ASSERT_EQ(lines.size(), s.ranks.size() + 1) << size_text(s);
    for (std::size_t r = 0; r < s.ranks.size(); ++r) {
      EXPECT_EQ(lines[r].size(), lines[0].size()) << size_text(s);
      std::size_t operations = 0;
      for (const Cell& cell : s.ranks[r]) operations += cell.beside ? 2 : 1;
      const auto letters =
          std::count_if(lines[r].begin() + 6, lines[r].end(), [](unsigned char c) { return std::isalpha(c) != 0; });
      EXPECT_EQ(static_cast<std::size_t>(letters), operations) << size_text(s);
    }
  }
}

TEST(ScheduleDrawing, ColoursChangeNoPlace) {
  for (const char* name : {"1f1b", "zb-v", "interleaved", "dualpipe"}) {
    const Schedule s = schedule_of(name, 4, 12);
    const auto plain = drawn_lines(s), coloured = drawn_lines(s, true);
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_NE(plain[r], coloured[r]);
      EXPECT_EQ(without_colours(coloured[r]).size(), plain[r].size()) << name;
      EXPECT_EQ(plain[r].find('\x1b'), std::string::npos);
    }
    EXPECT_EQ(without_colours(coloured[4]), plain[4]);
  }
}

TEST(ScheduleDrawing, FitsATerminal) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) {
    for (const std::string& line : drawn_lines(schedule_of(name, 4, 8))) EXPECT_LE(line.size(), 120u) << name;
  }
}

}  // namespace pipeline_drawing_test
}  // namespace ref5d::testing
