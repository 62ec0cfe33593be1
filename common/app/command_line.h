// The command line of a program: flags by group, with help, range checks and one-line errors.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/app/flag_value.h"
#include "common/app/options.h"

namespace ref5d {

// What a program does after parse: run, or end with status 0 because help, the version or a list was asked for and printed.
enum class ParseOutcome { kRun, kEnd };

// Declare flags first, then call parse once. Names are written with their dashes ("--micro-batch"); targets must outlive parse
// and hold the default. Declaring a name twice is a std::logic_error.
class CommandLine {
 public:
  // With the common flags; what parse reads goes to options().
  CommandLine(std::string program, std::string description, const Options& defaults);
  // Without: for tools.
  CommandLine(std::string program, std::string description);
  CommandLine(CommandLine&&) noexcept;
  CommandLine& operator=(CommandLine&&) noexcept;
  ~CommandLine();

  // Flags declared from here on are listed under this heading.
  void group(std::string heading);
  // `--name` sets the target to true.
  void add_flag(const std::string& name, bool& target, const std::string& help);
  // `--name` and `--no-name`.
  void add_switch(const std::string& name, bool& target, const std::string& help);
  void add_switch(const std::string& name, std::optional<bool>& target, const std::string& help);
  // `--name N`.
  void add_option(const std::string& name, std::int64_t& target, const std::string& help, IntegerRange range = {});
  void add_option(const std::string& name, std::optional<std::int64_t>& target, const std::string& help,
                  IntegerRange range = {});
  void add_option(const std::string& name, double& target, const std::string& help, NumberRange range = {});
  void add_option(const std::string& name, std::optional<double>& target, const std::string& help, NumberRange range = {});
  // `--name TEXT`, where value_name says what the text is: "FILE".
  void add_option(const std::string& name, std::string& target, const std::string& help,
                  const std::string& value_name = "TEXT");
  // `--name a|b|c`.
  void add_choice(const std::string& name, std::string& target, const std::string& help, std::vector<std::string> choices);
  void add_choice(const std::string& name, std::optional<std::string>& target, const std::string& help,
                  std::vector<std::string> choices);
  void add_choice(const std::string& name, Dtype& target, const std::string& help, const std::vector<Dtype>& choices);
  // `--name` alone, which stands for the first of the choices, or `--name a|b|c`.
  void add_choice_or_flag(const std::string& name, std::string& target, const std::string& help,
                          std::vector<std::string> choices);
  // An argument without a flag, required, in the order of declaration.
  void add_positional(const std::string& name, std::string& target, const std::string& help);

  // Adds `--AXIS N` (dp, tp, cp, pp, ep; options().axes holds those that were given), and with the first one the communication
  // flags. Without a call the program has no mesh flags.
  void allow_axis(const std::string& axis);
  // Adds the flags of models with experts, without which such models are refused.
  void allow_experts();
  // Takes a declared flag away: it leaves the help, and giving it is an error with this reason. The other half of a switch too.
  void forbid(const std::string& name, const std::string& reason);
  // A mistake that --sabotage can plant.
  void add_sabotage(const std::string& name, const std::string& breaks);

  // Reads the arguments and writes the targets. --help, --version and --sabotage list print to `out` (nullptr: nowhere, for
  // ranks other than 0). InputError, in one line, for anything that is wrong.
  [[nodiscard]] ParseOutcome parse(int argc, const char* const* argv, std::FILE* out = stdout);

  [[nodiscard]] const Options& options() const;
  [[nodiscard]] Options& options();
  // Whether the user gave this flag (or its --no- form). Known after parse.
  [[nodiscard]] bool given(const std::string& name) const;
  // The form in which it was given: `name` or its --no- form.
  [[nodiscard]] std::string as_given(const std::string& name) const;
  [[nodiscard]] std::string help() const;

 private:
  struct Impl;
  // A flag with a value: `set` reads the text, `fallback` is the default as help shows it.
  void add_value(const std::string& name, const std::string& value_name, const std::string& help, const std::string& fallback,
                 std::function<void(const std::string&)> set);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ref5d
