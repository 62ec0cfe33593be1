#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "common/verify/check.h"
#include "common/verify/table.h"
#include "tests/support/special_values.h"

namespace ref5d {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(CheckTest, PassesUpToItsToleranceAndNotBeyond) {
  EXPECT_TRUE(make_check("c", "m", 1e-12, 1e-11).pass);
  EXPECT_TRUE(make_check("c", "m", 1e-11, 1e-11).pass);
  EXPECT_FALSE(make_check("c", "m", 1.0000001e-11, 1e-11).pass);
  EXPECT_TRUE(make_check("c", "m", 0, 0).pass);
  EXPECT_FALSE(make_check("c", "m", 1e-300, 0).pass);
}

TEST(CheckTest, NothingThatIsNotFinitePasses) {
  for (double bad : {kNan, kInf, -kInf}) {
    EXPECT_FALSE(make_check("c", "m", bad, 1).pass);
    EXPECT_FALSE(make_check("c", "m", 0, bad).pass);
    EXPECT_FALSE(make_check("c", "m", bad, bad).pass);
  }
}

TEST(ClaimTest, IsExactWithoutAToleranceAndRelativeWithOne) {
  EXPECT_TRUE(make_claim("c", 100, 100).pass);
  EXPECT_FALSE(make_claim("c", 100, 100.0000001).pass);
  EXPECT_TRUE(make_claim("c", 100, 101, 0.01).pass);
  EXPECT_FALSE(make_claim("c", 100, 101.1, 0.01).pass);
  EXPECT_TRUE(make_claim("c", -100, -99, 0.01).pass);
  EXPECT_FALSE(make_claim("c", -100, 100, 0.01).pass);
  EXPECT_TRUE(make_claim("c", 0, 0, 0.01).pass);
  EXPECT_FALSE(make_claim("c", 0, 1e-9, 0.01).pass);
  EXPECT_FALSE(make_claim("c", kNan, kNan).pass);
  EXPECT_FALSE(make_claim("c", kInf, kInf).pass);
}

TEST(VerdictTest, OneFailureAnywhereFailsTheWhole) {
  Verdict v;
  EXPECT_TRUE(v.pass());
  v.add("loss/step 1", "relative error", 0, 1e-11);
  v.add_condition("replicas agree", true);
  v.claim(make_claim("bytes", 10, 10));
  EXPECT_TRUE(v.pass());
  Verdict by_check = v, by_condition = v, by_claim = v;
  by_check.add("loss/step 2", "relative error", kNan, 1e-11);
  by_condition.add_condition("replicas agree", false);
  by_claim.claim(make_claim("bytes", 10, 11));
  EXPECT_FALSE(by_check.pass());
  EXPECT_FALSE(by_condition.pass());
  EXPECT_FALSE(by_claim.pass());
}

TEST(VerdictTest, ASetBecomesOneCheckPerTensor) {
  const std::vector<NamedError> errors{
      {"a", {1e-12, 0, 0}, 1, ""}, {"b", {1e-3, 0, 0}, 1, ""}, {"c", {kInf, kInf, -1}, 1, "missing"}};
  Verdict v;
  v.add_set("gradients", errors, 1e-11);
  ASSERT_EQ(v.checks().size(), 3u);
  EXPECT_EQ(v.checks()[0].name, "gradients/a");
  EXPECT_TRUE(v.checks()[0].pass);
  EXPECT_FALSE(v.checks()[1].pass);
  EXPECT_FALSE(v.checks()[2].pass);
  EXPECT_NE(v.checks()[2].measure.find("missing"), std::string::npos);
}

TEST(VerdictTest, ATolerancePerNameCountsForItsNameOnly) {
  const std::vector<NamedError> errors{{"a", {1e-4, 0, 0}, 1, ""}, {"b", {1e-4, 0, 0}, 1, ""}, {"c", {0, 0, 0}, 1, ""}};
  Verdict v;
  v.add_set("gradients", errors, {{"a", 1e-3}, {"b", 1e-5}});
  EXPECT_TRUE(v.checks()[0].pass);
  EXPECT_FALSE(v.checks()[1].pass);
  EXPECT_FALSE(v.checks()[2].pass) << "no tolerance known for c";
}

TEST(ChecksTableTest, ShowsTheWorstOfEachGroupAndEveryFailure) {
  std::vector<Check> checks;
  for (int i = 0; i < 20; ++i)
    checks.push_back(make_check("gradients/w" + std::to_string(i), "relative error", 1e-13 * i, 1e-11));
  checks.push_back(make_check("gradient norm", "relative error", 0, 1e-11));
  std::string table = checks_table(checks);
  std::vector<std::string> lines = lines_of(table);
  ASSERT_EQ(lines.size(), 5u) << table;
  EXPECT_NE(lines[2].find("20"), std::string::npos);
  EXPECT_NE(lines[2].find("w19"), std::string::npos);
  EXPECT_EQ(table.find("FAIL"), std::string::npos);
  EXPECT_NE(table.find("all 21 checks hold"), std::string::npos);

  checks.push_back(make_check("gradients/small_nan", "relative error", kNan, 1e-11));
  checks.push_back(make_check("gradients/wrong", "relative error", 0.5, 1e-11));
  table = checks_table(checks);
  EXPECT_NE(table.find("FAIL (2)"), std::string::npos) << table;
  EXPECT_NE(table.find("2 of 23 checks failed"), std::string::npos) << table;
  EXPECT_NE(lines_of(table)[2].find("small_nan"), std::string::npos) << "what is not a number is worst of all";
  EXPECT_NE(table.find("gradients/wrong"), std::string::npos);
  EXPECT_NE(table.find("gradients/small_nan"), std::string::npos);
  EXPECT_EQ(checks_table({}), "");
}

TEST(ChecksTableTest, AFailureIsWorseThanAnyCheckThatHolds) {
  // A failing check with tolerance 0 and a holding one at the very edge of its tolerance.
  const std::vector<Check> checks{make_check("g/edge", "m", 1, 1), make_check("g/fail", "m", 1e-300, 0)};
  EXPECT_NE(lines_of(checks_table(checks))[2].find("fail"), std::string::npos);
}

TEST(ClaimsTableTest, ShowsBothSidesAndTheVerdict) {
  const std::vector<Claim> claims{make_claim("wire bytes", 1234567, 1234567, 0, "B"),
                                  make_claim("bubble", 0.25, 0.5, 0.1, "", "of a step")};
  const std::string table = claims_table(claims);
  EXPECT_NE(table.find("1 234 567 B"), std::string::npos) << table;
  EXPECT_NE(table.find("exact"), std::string::npos);
  EXPECT_NE(table.find("10 %"), std::string::npos);
  EXPECT_NE(table.find("FAIL"), std::string::npos);
  EXPECT_NE(table.find("of a step"), std::string::npos);
  EXPECT_EQ(claims_table({}), "");
}

TEST(TableTest, LinesUpAndTrimsLineEnds) {
  const std::string table = format_table({{"name", "n"}, {"a", "10"}, {"α", "5"}, {"longer", ""}}, "lr");
  EXPECT_EQ(table, "name     n\n----------\na       10\nα        5\nlonger\n");
  EXPECT_EQ(format_table({}, ""), "");
}

TEST(TableTest, WritesNumbersForPeople) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1536 * 1024), "1.50 MiB");
  EXPECT_EQ(human_bytes(1024 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(std::int64_t{5} << 40), "5.00 TiB");
  EXPECT_EQ(grouped_digits(0), "0");
  EXPECT_EQ(grouped_digits(999), "999");
  EXPECT_EQ(grouped_digits(1000), "1 000");
  EXPECT_EQ(grouped_digits(-1234567), "-1 234 567");
}

}  // namespace
}  // namespace ref5d
