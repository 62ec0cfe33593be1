#include "common/app/command_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "common/device/error.h"

namespace ref5d {
namespace {

// A program as a lesson declares it.
struct Program {
  Program() : line("02_ddp_zero", "Data parallelism and ZeRO.", Options{}) {
    line.allow_axis("dp");
    line.allow_axis("tp");
    line.group("ZeRO");
    line.add_choice("--strategy", strategy, "what is sharded", {"ddp", "zero1", "zero2", "zero3"});
    line.add_option("--bucket", bucket, "bytes per bucket", {1, 1 << 30});
    line.add_choice_or_flag("--draw", draw, "a picture", {"grid", "csv"});
    line.add_sabotage("mean-of-means", "averages the means of micro-batches");
    line.add_sabotage("skip-bucket", "forgets the last bucket");
  }
  ParseOutcome parse(const std::vector<std::string>& arguments, std::FILE* out = nullptr) {
    std::vector<const char*> argv{"program"};
    for (const std::string& a : arguments) argv.push_back(a.c_str());
    return line.parse(static_cast<int>(argv.size()), argv.data(), out);
  }
  std::string strategy = "zero1", draw;
  std::int64_t bucket = 1 << 20;
  CommandLine line;
};

std::string error_for(const std::vector<std::string>& arguments) {
  Program program;
  try {
    (void)program.parse(arguments);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

std::string printed(const std::vector<std::string>& arguments) {
  Program program;
  std::FILE* file = std::tmpfile();
  EXPECT_EQ(program.parse(arguments, file), ParseOutcome::kEnd);
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

// A flag whose value may be left out, at the end or before another flag.
TEST(CommandLineTest, AFlagAloneStandsForItsFirstChoice) {
  for (const auto& [arguments, expected] : {std::pair<std::vector<std::string>, std::string>{{}, ""},
                                            {{"--draw"}, "grid"},
                                            {{"--draw", "--strategy", "ddp"}, "grid"},
                                            {{"--draw", "csv"}, "csv"},
                                            {{"--draw=csv", "--strategy", "ddp"}, "csv"}}) {
    Program program;
    EXPECT_EQ(program.parse(arguments), ParseOutcome::kRun);
    EXPECT_EQ(program.draw, expected);
  }
  EXPECT_EQ(error_for({"--draw", "gird"}), "--draw gird: must be one of grid, csv; did you mean grid?");
  EXPECT_EQ(error_for({"--draw", "--draw"}), "--draw is given 2 times; give it once");
}

TEST(CommandLineTest, WithoutArgumentsKeepsTheDefaults) {
  Program program;
  EXPECT_EQ(program.parse({}), ParseOutcome::kRun);
  const Options& o = program.line.options();
  Options defaults;
  defaults.mesh = true;  // this program allows axes
  EXPECT_EQ(to_config(o), to_config(defaults));
  EXPECT_EQ(o.model, "tiny");
  EXPECT_FALSE(o.layers.has_value());
  EXPECT_TRUE(o.verify);
  EXPECT_TRUE(o.axes.empty());
  EXPECT_FALSE(program.line.given("--steps"));
}

TEST(CommandLineTest, ReadsEveryKindOfFlag) {
  Program program;
  EXPECT_EQ(program.parse({"--model",
                           "tiny-gpt2",
                           "--layers=7",
                           "--dropout",
                           "0.25",
                           "--qk-norm",
                           "--norm",
                           "layernorm",
                           "--position=rope",
                           "--mlp",
                           "gelu",
                           "--no-biases",
                           "--tied",
                           "--norm-eps",
                           "1e-6",
                           "--rope-theta",
                           "500000",
                           "--init-std",
                           "0",
                           "--lr",
                           "3e-4",
                           "--dtype=bf16",
                           "--no-verify",
                           "--quiet",
                           "--json",
                           "out dir/r.json",
                           "--dp",
                           "4",
                           "--strategy",
                           "zero3",
                           "--no-fp32-grads",
                           "--reduce-dtype",
                           "bf16",
                           "--bucket",
                           "77",
                           "--documents",
                           "pad",
                           "--seed",
                           "9223372036854775807"}),
            ParseOutcome::kRun);
  const Options& o = program.line.options();
  EXPECT_EQ(o.model, "tiny-gpt2");
  EXPECT_EQ(o.layers, 7);
  EXPECT_EQ(o.dropout, 0.25);
  EXPECT_EQ(o.qk_norm, true);
  EXPECT_EQ(o.norm, "layernorm");
  EXPECT_EQ(o.position, "rope");
  EXPECT_EQ(o.mlp, "gelu");
  EXPECT_EQ(o.biases, false);
  EXPECT_EQ(o.tied, true);
  EXPECT_EQ(o.norm_eps, 1e-6);
  EXPECT_EQ(o.rope_theta, 500000);
  EXPECT_EQ(o.init_std, 0);
  EXPECT_EQ(o.lr, 3e-4);
  EXPECT_EQ(o.dtype, Dtype::kBf16);
  EXPECT_FALSE(o.verify);
  EXPECT_TRUE(o.quiet);
  EXPECT_EQ(o.json, "out dir/r.json");
  EXPECT_EQ(o.axes, (std::map<std::string, std::int64_t>{{"dp", 4}}));
  EXPECT_EQ(program.strategy, "zero3");
  EXPECT_FALSE(o.fp32_grads);
  EXPECT_EQ(o.reduce_dtype, Dtype::kBf16);
  EXPECT_EQ(program.bucket, 77);
  EXPECT_EQ(o.documents, "pad");
  EXPECT_EQ(o.seed, 9223372036854775807);
  EXPECT_TRUE(program.line.given("--layers"));
  EXPECT_TRUE(program.line.given("--verify")) << "by its --no- form";
  EXPECT_FALSE(program.line.given("--hidden"));
}

TEST(CommandLineTest, ExactMessages) {
  EXPECT_EQ(error_for({"--micro-bacth", "3"}), "unknown flag --micro-bacth; did you mean --micro-batch?");
  EXPECT_EQ(error_for({"--micro-bacth=3"}), "unknown flag --micro-bacth; did you mean --micro-batch?");
  EXPECT_EQ(error_for({"-layers", "3"}), "unknown flag -layers; did you mean --layers?");
  EXPECT_EQ(error_for({"--micro", "3"}), "unknown flag --micro; did you mean --micro-batch?");
  EXPECT_EQ(error_for({"--frobnicate"}), "unknown flag --frobnicate; --help lists the flags");
  EXPECT_EQ(error_for({"--cp", "2"}), "unknown flag --cp; --help lists the flags") << "an axis that this program does not have";
  EXPECT_EQ(error_for({"--layers", "0"}), "--layers 0: must be a whole number of at least 1");
  EXPECT_EQ(error_for({"--layers", "x"}), "--layers x: must be a whole number of at least 1");
  EXPECT_EQ(error_for({"--layers", "99999999999999999999"}),
            "--layers 99999999999999999999: must be a whole number of at most 100000");
  EXPECT_EQ(error_for({"--layers", "-99999999999999999999"}),
            "--layers -99999999999999999999: must be a whole number of at least 1");
  EXPECT_EQ(error_for({"--dropout", "1"}), "--dropout 1: must be a number of at least 0 and at most 0.999");
  EXPECT_EQ(error_for({"--eps", "0"}), "--eps 0: must be a number of at least 1e-30");
  EXPECT_EQ(error_for({"--dtype", "fp16"}), "--dtype fp16: must be one of fp64, fp32, bf16");
  EXPECT_EQ(error_for({"--gemm", "tensor-cores"}),
            "--gemm tensor-cores: must be one of blas, hand, tensor-core; did you mean tensor-core?");
  EXPECT_EQ(error_for({"--layers"}), "--layers: its value is missing");
  EXPECT_EQ(error_for({"--layers="}), "--layers: its value is missing");
  EXPECT_EQ(error_for({"--layers", "--hidden", "8"}), "--layers: its value is missing (before --hidden)");
  EXPECT_EQ(error_for({"--steps", "3", "--steps", "4"}), "--steps is given 2 times; give it once");
  EXPECT_EQ(error_for({"--quiet=yes"}), "--quiet takes no value; write --quiet alone");
  EXPECT_EQ(error_for({"--verify", "--no-verify"}), "--verify and --no-verify contradict each other; give one of them");
  EXPECT_EQ(error_for({"train"}), "unexpected argument train; flags begin with --");
  EXPECT_EQ(error_for({"--json", ""}), "--json \"\": must not be empty");
  EXPECT_EQ(error_for({"--dump-level", "full"}), "--dump-level full: needs --dump FILE as well");
  EXPECT_EQ(error_for({"--sabotage", "skip-buckt"}),
            "--sabotage skip-buckt: must be one of mean-of-means, skip-bucket; did you mean skip-bucket?");
}

TEST(CommandLineTest, EveryNumberIsRangeChecked) {
  for (const char* flag : {"--layers", "--hidden", "--heads", "--kv-heads", "--ffn", "--vocab", "--seq", "--micro-batch",
                           "--grad-accum", "--steps", "--dp", "--tp", "--ranks-per-node", "--bucket"}) {
    for (const char* bad : {"0", "-1", "1.5", "1e3", "0x10", "+3", " 3", "3 ", "", "nan", "inf", "1,000", "9223372036854775808",
                            "18446744073709551617", "4294967296000", "--", "three"}) {
      const std::string error = error_for({flag, bad});
      EXPECT_EQ(error.find(flag), 0u) << flag << " '" << bad << "': " << error;
      EXPECT_EQ(error.find('\n'), std::string::npos);
    }
    Program program;
    EXPECT_EQ(program.parse({flag, "1"}), ParseOutcome::kRun) << flag;
  }
  for (const char* flag :
       {"--lr", "--weight-decay", "--clip", "--beta1", "--beta2", "--eps", "--dropout", "--timeout", "--peak-tflops"}) {
    for (const char* bad :
         {"-1", "-1e-9", "nan", "-nan", "inf", "-inf", "infinity", "1e999", "", "0.1x", "x", "0x1p3", "1,5", " 1", "+0.5"}) {
      const std::string error = error_for({flag, bad});
      EXPECT_EQ(error.find(flag), 0u) << flag << " '" << bad << "': " << error;
    }
    Program program;
    EXPECT_EQ(program.parse({flag, "0.5"}), ParseOutcome::kRun) << flag;
  }
  for (const char* flag : {"--dropout", "--beta1", "--beta2"}) EXPECT_NE(error_for({flag, "1"}), "no error");
  for (const char* flag : {"--eps", "--peak-tflops"}) EXPECT_NE(error_for({flag, "0"}), "no error");
  for (const char* flag : {"--seed", "--sample"}) {
    EXPECT_NE(error_for({flag, "-1"}), "no error");
    EXPECT_EQ(error_for({flag, "0"}), "no error");
  }
}

TEST(CommandLineTest, AnySingleSlipInAFlagIsCaughtAndNamed) {
  std::mt19937 random(5);
  for (const std::string name :
       {"--micro-batch", "--weight-decay", "--grad-accum", "--kv-heads", "--dump-level", "--strategy"}) {
    for (int trial = 0; trial < 12; ++trial) {
      std::string slip = name;
      const std::size_t at = 2 + random() % (name.size() - 3);
      switch (trial % 4) {
        case 0: slip.erase(at, 1); break;
        case 1: slip.insert(at, 1, 'q'); break;
        case 2: slip[at] = 'q'; break;
        default: std::swap(slip[at], slip[at + 1]); break;
      }
      if (slip == name) continue;
      const std::string error = error_for({slip, "1"});
      EXPECT_EQ(error, "unknown flag " + slip + "; did you mean " + name + "?");
    }
  }
}

TEST(CommandLineTest, NoGarbageGetsThroughOrBreaksTheOneLineRule) {
  std::mt19937 random(17);
  const std::string alphabet = "-=ab0. \n\t\"'[]{},\\\x01\xff/%$";
  const std::vector<std::string> words{
      "--layers", "--quiet", "--json", "--", "-", "--=", "=", "--sabotage", "--no-", "--dp", "3"};
  int rejected = 0;
  for (int trial = 0; trial < 150; ++trial) {
    std::vector<std::string> arguments;
    for (std::size_t i = 0, n = 1 + random() % 4; i < n; ++i) {
      std::string text = random() % 2 == 0 ? words[random() % words.size()] : "";
      for (std::size_t c = random() % 6; c > 0; --c) text += alphabet[random() % alphabet.size()];
      arguments.push_back(text);
    }
    const std::string error = error_for(arguments);  // anything but InputError escapes and fails the test
    if (error != "no error") ++rejected;
    EXPECT_FALSE(error.empty());
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_LT(error.size(), 300u);
  }
  EXPECT_GT(rejected, 100);
}

TEST(CommandLineTest, LongAndMultiLineArgumentsAreCutInMessages) {
  EXPECT_LT(error_for({"--layers", std::string(10000, '7')}).size(), 200u);
  EXPECT_LT(error_for({"--" + std::string(10000, 'x')}).size(), 200u);
  EXPECT_EQ(error_for({"--layers", "1\n2"}), "--layers 1?2: must be a whole number of at least 1");
}

TEST(CommandLineTest, ForbiddenFlagsLeaveTheHelpAndSayWhy) {
  Program program;
  EXPECT_NE(program.line.help().find("--verify"), std::string::npos);
  program.line.forbid("--verify", "every run is checked");
  program.line.forbid("--grad-accum", "there is one micro-batch");
  EXPECT_EQ(program.line.help().find("--no-verify"), std::string::npos);
  EXPECT_EQ(program.line.help().find("--grad-accum"), std::string::npos);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--no-verify"}, {"--verify"}, {"--grad-accum", "2"}}) {
    Program fresh;
    fresh.line.forbid("--verify", "every run is checked");
    fresh.line.forbid("--grad-accum", "there is one micro-batch");
    EXPECT_THROW((void)fresh.parse(arguments), InputError);
  }
  EXPECT_THROW(program.line.forbid("--no-such-flag", "x"), std::logic_error);
}

TEST(CommandLineTest, DeclaringAFlagTwiceIsAMistakeOfTheProgram) {
  Program program;
  std::int64_t n = 1;
  EXPECT_THROW(program.line.add_option("--steps", n, "again"), std::logic_error);
  EXPECT_THROW(program.line.allow_axis("xp"), std::logic_error);
}

TEST(CommandLineTest, HelpListsEveryFlagOnceInAlignedColumns) {
  const std::string help = printed({"--help"});
  EXPECT_EQ(printed({"-h"}), help);
  EXPECT_EQ(printed({"--no-such-flag", "--help"}), help) << "help wins over mistakes";
  std::set<std::string> seen;
  std::size_t start = 0;
  while (start < help.size()) {
    const std::size_t end = help.find('\n', start);
    const std::string text = help.substr(start, end - start);
    start = end + 1;
    EXPECT_LE(text.size(), 128u) << text;
    if (text.rfind("  --", 0) != 0) continue;
    EXPECT_TRUE(seen.insert(text.substr(2, text.find(' ', 2) - 2)).second) << text;
    ASSERT_GT(text.size(), 36u) << text;
    EXPECT_EQ(text[35], ' ') << text;
    EXPECT_NE(text[36], ' ') << text;
  }
  for (const char* flag : {"--model", "--micro-batch", "--lr", "--dtype", "--no-verify", "--sabotage", "--json", "--save",
                           "--sample", "--dp", "--tp", "--timeout", "--strategy", "--help", "--version"}) {
    EXPECT_TRUE(seen.contains(flag)) << flag;
  }
  EXPECT_FALSE(seen.contains("--cp"));
  EXPECT_NE(help.find("[zero1]"), std::string::npos) << "defaults are shown";
}

TEST(CommandLineTest, VersionAndSabotageListPrintAndEnd) {
  EXPECT_EQ(printed({"--version"}).find("02_ddp_zero (ref5d "), 0u);
  EXPECT_EQ(printed({"--sabotage", "list"}),
            "mean-of-means  averages the means of micro-batches\nskip-bucket    forgets the last bucket\n");
  Program program;
  EXPECT_EQ(program.parse({"--sabotage", "skip-bucket"}), ParseOutcome::kRun);
  EXPECT_EQ(program.line.options().sabotage, "skip-bucket");
}

TEST(CommandLineTest, AToolHasItsOwnFlagsAndPositionals) {
  const auto read = [](const std::vector<const char*>& arguments) {
    CommandLine line("compare", "Compares.");
    std::string a, b;
    std::optional<double> tolerance;
    line.add_positional("A", a, "a dump");
    line.add_positional("B", b, "another");
    line.add_option("--tolerance", tolerance, "largest error", {.min = 0});
    std::vector<const char*> argv{"compare"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    (void)line.parse(static_cast<int>(argv.size()), argv.data(), nullptr);
    return a + "|" + b + "|" + (tolerance ? std::to_string(*tolerance) : "none");
  };
  EXPECT_EQ(read({"x", "y"}), "x|y|none");
  EXPECT_EQ(read({"x", "--tolerance", "0.5", "y"}), "x|y|0.500000");
  EXPECT_THROW((void)read({"x"}), InputError);
  EXPECT_THROW((void)read({}), InputError);
  EXPECT_THROW((void)read({"x", "y", "z"}), InputError);
  EXPECT_THROW((void)read({"x", "y", "--steps", "3"}), InputError);
}

TEST(ToConfigTest, HasOneTypedValuePerSetting) {
  Options o;
  o.layers = 3;
  o.qk_norm = false;
  o.mesh = true;
  o.axes = {{"dp", 2}};
  o.json = "r.json";
  const ValueList list = to_config(o);
  std::set<std::string> keys;
  for (const auto& [key, value] : list) EXPECT_TRUE(keys.insert(key).second) << key;
  const auto value = [&](const std::string& key) {
    for (const auto& [k, v] : list) {
      if (k == key) return v;
    }
    return Value(std::string("absent"));
  };
  EXPECT_EQ(value("layers"), Value(std::int64_t{3}));
  EXPECT_EQ(value("qk-norm"), Value(false));
  EXPECT_EQ(value("lr"), Value(1e-3));
  EXPECT_EQ(value("dtype"), Value(std::string("fp32")));
  EXPECT_EQ(value("dp"), Value(std::int64_t{2}));
  EXPECT_EQ(value("json"), Value(std::string("r.json")));
  EXPECT_EQ(value("recompute"), Value(std::string("none"))) << "text, not a boolean";
  EXPECT_FALSE(keys.contains("hidden"));
  EXPECT_TRUE(keys.contains("comm") && keys.contains("check-order"));
  o.mesh = false;
  for (const auto& [key, v] : to_config(o)) EXPECT_TRUE(key != "comm" && key != "timeout" && key != "dp") << key;
  EXPECT_FALSE(keys.contains("trace"));
  ValueList changed = list;
  set_value(changed, "layers", std::int64_t{4});
  set_value(changed, "new", true);
  EXPECT_EQ(changed.size(), list.size() + 1);
}

TEST(NearestTest, SuggestsOnlyWhatWasProbablyMeant) {
  const std::vector<std::string> names{"steps", "seed", "save", "micro-batch", "micro-batches"};
  EXPECT_EQ(nearest("stpes", names), "steps");
  EXPECT_EQ(nearest("step", names), "steps");
  EXPECT_EQ(nearest("micro-batchs", names), "micro-batch");
  EXPECT_EQ(nearest("zzz", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("steps", {}), "");
}

}  // namespace
}  // namespace ref5d
