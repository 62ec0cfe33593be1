#include "common/verify/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "common/app/output.h"
#include "common/device/error.h"
#include "common/io/file.h"
#include "tests/support/special_values.h"

namespace ref5d {
namespace {

Report example_report() {
  Report r;
  r.program = "02_ddp_zero";
  r.version = "1.2.3";
  r.mode = "cpu";
  r.config = {{"model", std::string("tiny")}, {"steps", std::int64_t{3}}, {"lr", 0.1}, {"verify", true}, {"whole", 3.0}};
  r.mesh = {{"pp", 1}, {"dp", 4}, {"cp", 1}};
  r.loss = {5.5, 0.1 + 0.2, 1.0 / 3};
  r.aux_loss = {0.25};
  r.baseline_loss = {5.5, 0.3};
  r.checks = {make_check("loss/step 1", "relative error", 1e-13, 1e-11), make_check("norm", "relative error", 0, 1e-11)};
  r.traffic = {{"dp", "all_reduce", "backward", 3, 4096, 6144, 12, 16384, 24576, true}};
  r.memory = {{0, "parameters", 1000, 1000}, {0, "activations", 0, 3 << 20}, {1, "parameters", 1000, 2000}};
  r.experts = {{4, 1, 8, {6, 2, 0}, {3, 2, 0}, {5, 0}, 8}};
  r.values = {{"other-choices", std::int64_t{39}}};
  r.timing = {{"step_ms", 41.25}, {"tokens_per_s", 12345}};
  r.claims = {make_claim("wire bytes", 6144, 6144, 0, "B", "ring bound")};
  return r;
}

class ReportFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("ref5d_report_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  std::filesystem::path folder_;
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no InputError";
}

TEST(ReportTest, HasTheFieldsOfTheSchemaInOrder) {
  std::vector<std::string> keys;
  const Json json = example_report().to_json();
  for (const auto& [key, value] : json.members()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"program", "version", "mode", "config", "mesh", "loss", "aux_loss", "baseline_loss",
                                            "checks", "traffic", "memory", "experts", "values", "timing", "claims"}));
  for (const char* key : {"name", "measure", "value", "tolerance", "pass"}) EXPECT_TRUE(json.at("checks").at(0).contains(key));
  for (const char* key : {"axis", "op", "phase", "calls", "payload_bytes", "wire_bytes"}) {
    EXPECT_TRUE(json.at("traffic").at(0).contains(key)) << key;
  }
  for (const char* key : {"rank", "category", "current_bytes", "peak_bytes"})
    EXPECT_TRUE(json.at("memory").at(0).contains(key));
  for (const char* key : {"name", "expected", "measured", "pass"}) EXPECT_TRUE(json.at("claims").at(0).contains(key)) << key;
  EXPECT_EQ(json.at("mesh").at("dp").as_int(), 4);
  EXPECT_EQ(json.at("config").at("model").as_string(), "tiny");
}

TEST(ReportTest, AnEmptyReportStillHasEveryField) {
  const Json json = Report{}.to_json();
  EXPECT_EQ(json.members().size(), 15u);
  for (const char* key : {"loss", "aux_loss", "baseline_loss", "checks", "traffic", "memory", "experts", "claims"}) {
    EXPECT_TRUE(json.at(key).is_array()) << key;
  }
  for (const char* key : {"config", "mesh", "values", "timing"}) EXPECT_TRUE(json.at(key).is_object()) << key;
  EXPECT_EQ(Report{}.tables(), "");
  EXPECT_EQ(Report{}.exit_status(), kExitOk);
}

TEST_F(ReportFileTest, ReadsBackWhatItWrote) {
  const Report r = example_report();
  r.write_json(path("report.json"));
  const Report back = read_report(path("report.json"));
  EXPECT_EQ(back.to_json(), r.to_json());
  EXPECT_EQ(back.loss, r.loss) << "to the last bit";
  EXPECT_EQ(back.config, r.config) << "with their types: 3.0 stays a double";
  EXPECT_EQ(back.mesh, r.mesh);
  EXPECT_EQ(back.values, r.values);
  EXPECT_EQ(back.timing, r.timing);
  EXPECT_EQ(back.traffic[0].total_wire_bytes, 24576);
  EXPECT_EQ(back.memory[1].peak_bytes, 3 << 20);
  EXPECT_EQ(back.experts[0].rows, (std::vector<std::int64_t>{3, 2, 0}));
  EXPECT_EQ(back.experts[0].rank_rows, (std::vector<std::int64_t>{5, 0}));
  EXPECT_EQ(back.experts[0].imbalance(), 6 * 3.0 / 8);
  EXPECT_EQ(back.experts[0].rank_imbalance(), 2);
  EXPECT_EQ(back.experts[0].dropped(), 3.0 / 8);
  EXPECT_EQ(back.experts[0].padding(), 3.0 / 8);
  EXPECT_EQ(back.claims[0].note, "ring bound");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) files += entry.exists() ? 1 : 0;
  EXPECT_EQ(files, 1u) << "no temporary file stays";
}

TEST_F(ReportFileTest, ValuesThatAreNotFiniteSurvive) {
  Report r = example_report();
  r.loss = {kNan, kInf, -kInf};
  r.checks.push_back(make_check("broken", "relative error", kInf, 1e-11));
  r.write_json(path("report.json"));
  const Report back = read_report(path("report.json"));
  EXPECT_TRUE(std::isnan(back.loss[0]));
  EXPECT_EQ(back.loss[1], kInf);
  EXPECT_EQ(back.loss[2], -kInf);
  EXPECT_EQ(back.checks.back().value, kInf);
  EXPECT_FALSE(back.checks.back().pass);
  EXPECT_EQ(back.exit_status(), kExitCheckFailed);
}

TEST_F(ReportFileTest, EveryMissingFieldIsAnErrorThatNamesFileAndField) {
  const Json whole = example_report().to_json();
  for (const auto& [left_out, unused] : whole.members()) {
    Json partial = Json::object();
    for (const auto& [key, value] : whole.members()) {
      if (key != left_out) partial.append_member(key, value);
    }
    write_file(path("partial.json"), partial.dump());
    const std::string message = message_of([&] { (void)read_report(path("partial.json")); });
    EXPECT_NE(message.find("partial.json"), std::string::npos) << message;
    EXPECT_NE(message.find("\"" + left_out + "\""), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST_F(ReportFileTest, WrongTypesTornFilesAndMissingFilesAreInputErrors) {
  Json wrong = example_report().to_json();
  wrong["loss"] = "five";
  write_file(path("wrong.json"), wrong.dump());
  EXPECT_THROW((void)read_report(path("wrong.json")), InputError);
  const std::string text = example_report().to_json().dump(2);
  write_file(path("torn.json"), text.substr(0, text.size() / 2));
  EXPECT_THROW((void)read_report(path("torn.json")), InputError);
  write_file(path("list.json"), "[1, 2]");
  EXPECT_THROW((void)read_report(path("list.json")), InputError);
  EXPECT_THROW((void)read_report(path("absent.json")), InputError);
  EXPECT_THROW(example_report().write_json(path("no/such/folder/report.json")), InputError);
}

TEST(ReportTest, TheExitStatusFollowsChecksAndClaims) {
  Report r = example_report();
  EXPECT_EQ(r.exit_status(), 0);
  Report bad_check = r, bad_claim = r;
  bad_check.checks.push_back(make_check("x", "m", 2, 1));
  EXPECT_EQ(bad_check.exit_status(), 1);
  bad_claim.claims.push_back(make_claim("x", 1, 2));
  EXPECT_EQ(bad_claim.exit_status(), 1);
}

// 1000 tokens in 2 s on 8 devices, as a share of what they could do.
TEST(ReportTest, MfuIsThereWhereThePeakIsKnown) {
  Options options;
  const GptConfig model = preset("tiny");
  RunRecord record;
  record.steps.push_back({.ms = 2000, .tokens = 1000, .valid_tokens = 900});
  Report r = new_report("01_grad_accum", options, model);
  r.mesh = {{"dp", 4}, {"tp", 2}};
  fill_report(r, options, model, record, Verdict());
  EXPECT_EQ(r.timing.at("tokens_per_s"), 500);
  EXPECT_FALSE(r.timing.contains("mfu"));
  EXPECT_EQ(r.tables().find("mfu"), std::string::npos);
  options.peak_tflops = 0.001;
  fill_report(r, options, model, record, Verdict());
  // 6 N: q and o, k and v, three of the MLP, the head; 12 L H S.
  const double per_token = 6.0 * (4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192) + 64 * 256) + 12.0 * 4 * 64 * 64;
  EXPECT_DOUBLE_EQ(r.timing.at("mfu"), 500 * per_token / (0.001e12 * 8));
  EXPECT_NE(r.tables().find("mfu"), std::string::npos);
  EXPECT_DOUBLE_EQ(r.to_json().at("timing").at("mfu").as_double(), r.timing.at("mfu"));
}

TEST(ReportTest, TablesShowEverySectionThatHasRows) {
  Report r = example_report();
  std::string text = r.tables();
  for (const char* part : {"loss", "all 2 checks hold", "wire bytes", "6 144 B", "all_reduce", "6 144 (6.00 KiB)", "parameters",
                           "3.00 MiB", "3 145 728", "step_ms", "41.25", "2 000 (1.95 KiB)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_EQ(text.find("by formula"), std::string::npos);
  r.traffic[0].wire_counted = false;
  r.memory.pop_back();
  text = r.tables();
  EXPECT_NE(text.find("by formula"), std::string::npos);
  EXPECT_EQ(text.find("highest peak"), std::string::npos) << "one rank only";
  r.traffic.clear();
  EXPECT_EQ(r.tables().find("all_reduce"), std::string::npos);
}

}  // namespace
}  // namespace ref5d
