// The only file that includes CLI11. CLI11 splits the arguments and formats the help; values are read by flag_value.h, so that
// every error is one line in the same form.
#include "common/app/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "common/app/version.h"
#include "common/device/error.h"

namespace ref5d {
namespace {

constexpr std::size_t kHelpColumn = 36;

struct Flag {
  std::string name;
  bool takes_value = false;
  CLI::Option* option = nullptr;
  std::function<void(const std::string&)> set;  // called with the text, or with "" for a flag without a value
  std::string forbidden;                        // why this program does not take it; empty: it does
  std::string alone = {};                       // the value that the flag without one stands for; empty: none
};

const char* axis_help(const std::string& axis) {
  if (axis == "dp") return "data-parallel ranks; default: the ranks that remain";
  if (axis == "tp") return "tensor-parallel ranks";
  if (axis == "cp") return "context-parallel ranks";
  if (axis == "pp") return "pipeline stages";
  if (axis == "ep") return "expert-parallel ranks";
  throw std::logic_error("no such axis: " + axis);
}

std::string negated(const std::string& name) { return "--no-" + name.substr(2); }

std::string path_or_text(std::string_view flag, const std::string& text) {
  if (text.empty()) throw InputError(fmt::format("{} \"\": must not be empty", flag));
  return text;
}

}  // namespace

struct CommandLine::Impl {
  Impl(std::string program_name, std::string description)
      : program(std::move(program_name)), app(std::move(description), program) {
    app.set_help_flag();
    app.allow_extras();  // unknown flags are reported here, with a suggestion
    app.get_formatter()->column_width(kHelpColumn);
    help_flag = app.add_flag("--help")->description("print this page and end (also -h)");
    version_flag = app.add_flag("--version")->description("print the version and end");
    for (CLI::Option* o : {help_flag, version_flag}) o->group("General")->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  Flag& declare(const std::string& name, bool takes_value, const std::string& help,
                std::function<void(const std::string&)> set) try {
    CLI::Option* option = takes_value ? app.add_option(name) : app.add_flag(name);
    option->description(help)->group(heading)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    flags.push_back({name, takes_value, option, std::move(set), ""});
    return flags.back();
  } catch (const CLI::ConstructionError& e) {
    throw std::logic_error(e.what());
  }

  Flag& find(const std::string& name) {
    const auto found = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
    if (found == flags.end()) throw std::logic_error("no such flag: " + name);
    return *found;
  }

  // CLI11 splits; what it cannot split is a flag at the end whose value is missing.
  void split(std::vector<std::string> arguments) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == arguments[i]; });
      const bool has_value = i + 1 < arguments.size() && !arguments[i + 1].starts_with("-");
      if (flag != flags.end() && !flag->alone.empty() && !has_value)
        arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, flag->alone);
    }
    const std::string last = arguments.empty() ? "" : arguments.back();
    std::reverse(arguments.begin(), arguments.end());  // the order in which CLI11 takes a vector
    try {
      app.parse(arguments);
    } catch (const CLI::ArgumentMismatch&) {
      throw InputError(fmt::format("{}: its value is missing", printable(last)));
    } catch (const CLI::ParseError& e) {
      throw InputError(printable(e.what()));
    }
  }

  [[nodiscard]] bool help_asked() const {
    const std::vector<std::string> rest = app.remaining();
    return help_flag->count() > 0 || std::find(rest.begin(), rest.end(), "-h") != rest.end();
  }

  void reject_unknown() const {
    std::vector<std::string> rest = app.remaining();
    std::stable_partition(rest.begin(), rest.end(), [](const std::string& text) { return text.starts_with('-'); });
    if (rest.empty()) return;
    if (!rest[0].starts_with('-')) {
      throw InputError(fmt::format("unexpected argument {}; flags begin with --", printable(rest[0])));
    }
    const std::string name = rest[0].substr(0, rest[0].find('='));
    std::vector<std::string> known{"help", "version"};  // without dashes: they say nothing about what was meant
    for (const Flag& f : flags) {
      if (f.forbidden.empty()) known.push_back(f.name.substr(2));
    }
    const std::string meant = nearest(name.substr(std::min(name.find_first_not_of('-'), name.size())), known);
    const std::string hint = meant.empty() ? "--help lists the flags" : fmt::format("did you mean --{}?", meant);
    throw InputError(fmt::format("unknown flag {}; {}", printable(name), hint));
  }

  // A flag that swallowed the next flag as its value: CLI11 takes whatever follows.
  void reject_missing_values() const {
    for (const Flag& f : flags) {
      if (!f.takes_value) continue;
      for (const std::string& text : f.option->results()) {
        if (text.starts_with("--"))
          throw InputError(fmt::format("{}: its value is missing (before {})", f.name, printable(text)));
      }
    }
  }

  // The checks that concern one flag by itself, before its value is read.
  void check_use(const Flag& f) const {
    const std::vector<std::string>& texts = f.option->results();
    if (!f.forbidden.empty()) throw InputError(fmt::format("{} is not available in {}: {}", f.name, program, f.forbidden));
    if (texts.size() > 1) throw InputError(fmt::format("{} is given {} times; give it once", f.name, texts.size()));
    if (!f.takes_value && texts[0] != "true") {
      throw InputError(fmt::format("{} takes no value; write {} alone", f.name, f.name));
    }
  }

  void set_all() {
    for (const Flag& f : flags) {
      if (f.option->count() == 0) continue;
      check_use(f);
      if (f.name.starts_with("--no-")) {
        const std::string positive = "--" + f.name.substr(5);
        for (const Flag& other : flags) {
          if (other.name == positive && other.option->count() > 0) {
            throw InputError(fmt::format("{} and {} contradict each other; give one of them", positive, f.name));
          }
        }
      }
      f.set(f.takes_value ? f.option->results()[0] : "");
    }
    for (const Flag& f : positionals) {
      if (f.option->count() == 0) throw InputError(fmt::format("{} is missing; usage: {}", f.name, usage()));
      f.set(f.option->results()[0]);
    }
  }

  [[nodiscard]] std::string usage() const {
    std::string text = program;
    for (const Flag& f : positionals) text += " " + f.name;
    return text;
  }

  void check_combinations() const {
    if (options.dump_level == "full" && options.dump.empty()) throw InputError("--dump-level full: needs --dump FILE as well");
    if (!options.load.empty() && !options.resume.empty()) {
      throw InputError("--load and --resume both say where the weights come from; give one of them");
    }
    const bool reduces = std::any_of(flags.begin(), flags.end(),
                                     [](const Flag& f) { return f.name == "--reduce-dtype" && f.option->count() > 0; });
    if (reduces && options.dtype != Dtype::kBf16)
      throw InputError(fmt::format("--reduce-dtype means nothing with --dtype {}; it is for bf16", dtype_name(options.dtype)));
    if (options.sabotage.empty() || options.sabotage == "list") return;
    std::vector<std::string> names;
    for (const auto& [name, breaks] : sabotages) names.push_back(name);
    if (names.empty()) throw InputError(fmt::format("--sabotage {}: {} has none", printable(options.sabotage), program));
    (void)parse_choice("--sabotage", options.sabotage, names);
  }

  [[nodiscard]] std::string sabotage_list() const {
    std::size_t width = 0;
    for (const auto& [name, breaks] : sabotages) width = std::max(width, name.size());
    std::string text;
    for (const auto& [name, breaks] : sabotages) text += name + std::string(width - name.size() + 2, ' ') + breaks + "\n";
    return text;
  }

  std::string program;
  CLI::App app;
  CLI::Option* help_flag = nullptr;
  CLI::Option* version_flag = nullptr;
  std::string heading = "Flags";
  std::vector<Flag> flags;
  std::vector<Flag> positionals;
  std::vector<std::pair<std::string, std::string>> sabotages;  // name, what it breaks
  bool has_mesh = false;
  Options options;
};

CommandLine::CommandLine(std::string program, std::string description)
    : impl_(std::make_unique<Impl>(std::move(program), std::move(description))) {}

CommandLine::CommandLine(std::string program, std::string description, const Options& defaults)
    : CommandLine(std::move(program), std::move(description)) {
  impl_->options = defaults;
  add_common_flags(*this, impl_->options);
}

CommandLine::CommandLine(CommandLine&&) noexcept = default;
CommandLine& CommandLine::operator=(CommandLine&&) noexcept = default;
CommandLine::~CommandLine() = default;

void CommandLine::group(std::string heading) { impl_->heading = std::move(heading); }

void CommandLine::add_value(const std::string& name, const std::string& value_name, const std::string& help,
                            const std::string& fallback, std::function<void(const std::string&)> set) {
  const std::string shown = fallback.empty() ? help : fmt::format("{} [{}]", help, fallback);
  impl_->declare(name, true, shown, std::move(set)).option->type_name(value_name);
}

void CommandLine::add_flag(const std::string& name, bool& target, const std::string& help) {
  impl_->declare(name, false, help, [&target](const std::string&) { target = true; });
}

void CommandLine::add_switch(const std::string& name, bool& target, const std::string& help) {
  impl_->declare(name, false, help + (target ? " [on]" : " [off]"), [&target](const std::string&) { target = true; });
  impl_->declare(negated(name), false, "turns it off", [&target](const std::string&) { target = false; });
}

void CommandLine::add_switch(const std::string& name, std::optional<bool>& target, const std::string& help) {
  impl_->declare(name, false, help, [&target](const std::string&) { target = true; });
  impl_->declare(negated(name), false, "turns it off", [&target](const std::string&) { target = false; });
}

void CommandLine::add_option(const std::string& name, std::int64_t& target, const std::string& help, IntegerRange range) {
  add_value(name, "N", help, fmt::format("{}", target),
            [name, &target, range](const std::string& text) { target = parse_integer(name, text, range); });
}

void CommandLine::add_option(const std::string& name, std::optional<std::int64_t>& target, const std::string& help,
                             IntegerRange range) {
  add_value(name, "N", help, target ? fmt::format("{}", *target) : "",
            [name, &target, range](const std::string& text) { target = parse_integer(name, text, range); });
}

void CommandLine::add_option(const std::string& name, double& target, const std::string& help, NumberRange range) {
  add_value(name, "X", help, fmt::format("{}", target),
            [name, &target, range](const std::string& text) { target = parse_number(name, text, range); });
}

void CommandLine::add_option(const std::string& name, std::optional<double>& target, const std::string& help,
                             NumberRange range) {
  add_value(name, "X", help, target ? fmt::format("{}", *target) : "",
            [name, &target, range](const std::string& text) { target = parse_number(name, text, range); });
}

void CommandLine::add_option(const std::string& name, std::string& target, const std::string& help,
                             const std::string& value_name) {
  add_value(name, value_name, help, target, [name, &target](const std::string& text) { target = path_or_text(name, text); });
}

void CommandLine::add_choice(const std::string& name, std::string& target, const std::string& help,
                             std::vector<std::string> choices) {
  const std::string shown = join(choices, "|");
  add_value(name, shown, help, target, [name, &target, choices = std::move(choices)](const std::string& text) {
    target = parse_choice(name, text, choices);
  });
}

void CommandLine::add_choice_or_flag(const std::string& name, std::string& target, const std::string& help,
                                     std::vector<std::string> choices) {
  const std::string first = choices.front();
  add_choice(name, target, help, std::move(choices));
  impl_->find(name).alone = first;
}

void CommandLine::add_choice(const std::string& name, std::optional<std::string>& target, const std::string& help,
                             std::vector<std::string> choices) {
  const std::string shown = join(choices, "|");
  add_value(name, shown, help, target.value_or(""), [name, &target, choices = std::move(choices)](const std::string& text) {
    target = parse_choice(name, text, choices);
  });
}

void CommandLine::add_choice(const std::string& name, Dtype& target, const std::string& help,
                             const std::vector<Dtype>& choices) {
  std::vector<std::string> names;
  for (Dtype d : choices) names.emplace_back(dtype_name(d));
  const std::string shown = join(names, "|");
  add_value(name, shown, help, dtype_name(target), [name, &target, choices, names](const std::string& text) {
    const std::string chosen = parse_choice(name, text, names);
    target = choices[static_cast<std::size_t>(std::find(names.begin(), names.end(), chosen) - names.begin())];
  });
}

void CommandLine::add_positional(const std::string& name, std::string& target, const std::string& help) {
  CLI::Option* option = impl_->app.add_option(name)->description(help)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  impl_->positionals.push_back(
      {name, true, option, [name, &target](const std::string& text) { target = path_or_text(name, text); }, ""});
}

void CommandLine::allow_axis(const std::string& axis) {
  Impl& impl = *impl_;
  const std::string before = std::exchange(impl.heading, "Mesh");
  const std::string name = "--" + axis;
  add_value(name, "N", axis_help(axis), "", [name, axis, &impl](const std::string& text) {
    impl.options.axes[axis] = parse_integer(name, text, {1, 1 << 24});
  });
  if (!std::exchange(impl.has_mesh, true)) {
    impl.heading = "Communication";
    add_communication_flags(*this, impl.options);
  }
  impl.heading = before;
}

void CommandLine::allow_experts() {
  Impl& impl = *impl_;
  const std::string before = std::exchange(impl.heading, "Experts (overriding a preset's)");
  add_expert_flags(*this, impl.options);
  impl.heading = before;
}

void CommandLine::forbid(const std::string& name, const std::string& reason) {
  for (Flag& f : impl_->flags) {
    if (f.name != name && f.name != negated(name)) continue;
    f.forbidden = reason;
    f.option->group("");  // CLI11 hides options without a group
  }
  (void)impl_->find(name);
}

void CommandLine::add_sabotage(const std::string& name, const std::string& breaks) {
  impl_->sabotages.emplace_back(name, breaks);
}

ParseOutcome CommandLine::parse(int argc, const char* const* argv, std::FILE* out) {
  Impl& impl = *impl_;
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) arguments.emplace_back(argv[i]);
  for (const std::string& a : arguments) {
    if (a.starts_with("--") && a.find('=') + 1 == a.size()) {
      throw InputError(fmt::format("{}: its value is missing", printable(a.substr(0, a.size() - 1))));
    }
  }
  impl.split(std::move(arguments));
  const auto print = [out](const std::string& text) {
    if (out != nullptr) fmt::print(out, "{}", text);
    return ParseOutcome::kEnd;
  };
  if (impl.help_asked()) return print(help());
  impl.reject_missing_values();
  impl.reject_unknown();
  if (impl.version_flag->count() > 0) return print(fmt::format("{} (ref5d {})\n", impl.program, kVersion));
  impl.set_all();
  impl.check_combinations();
  if (impl.options.sabotage == "list") return print(impl.sabotage_list());
  return ParseOutcome::kRun;
}

const Options& CommandLine::options() const { return impl_->options; }
Options& CommandLine::options() { return impl_->options; }

bool CommandLine::given(const std::string& name) const {
  const std::string other = negated(name);
  (void)impl_->find(name);
  return std::any_of(impl_->flags.begin(), impl_->flags.end(),
                     [&](const Flag& f) { return (f.name == name || f.name == other) && f.option->count() > 0; });
}

std::string CommandLine::as_given(const std::string& name) const {
  return impl_->find(name).option->count() > 0 ? name : negated(name);
}

std::string CommandLine::help() const {
  std::string text = impl_->app.help();
  for (std::size_t at; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);  // one blank line between groups
  while (text.ends_with("\n\n")) text.pop_back();
  return text;
}

}  // namespace ref5d
