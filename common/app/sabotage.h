// What the lessons' sabotages share: settings in which a mistake shows, unless the user chose others.
#pragma once

#include <fmt/format.h>

#include <string>
#include <type_traits>
#include <vector>

#include "common/app/command_line.h"
#include "common/device/error.h"

namespace ref5d {

// Sets an option unless the user gave its flag, and notes in `o` that it did.
template <typename Field, typename T>
void prefer(Options& o, const CommandLine& line, const char* flag, Field& option, const T& value) {
  if (line.given(flag) || option == value) return;
  option = value;
  if constexpr (std::is_same_v<T, bool>) {
    o.sabotage_flags += fmt::format(" {}{}", value ? "--" : "--no-", flag + 2);
  } else if constexpr (std::is_same_v<T, Dtype>) {
    o.sabotage_flags += fmt::format(" {} {}", flag, dtype_name(value));
  } else {
    o.sabotage_flags += fmt::format(" {} {}", flag, value);
  }
}
// The line that says what runs.
inline std::string sabotage_line(const Options& o, const std::string& breaks) {
  return fmt::format("sabotage {}{}: {}\n", o.sabotage, o.sabotage_flags.empty() ? "" : ", with" + o.sabotage_flags, breaks);
}

// A mistake that cannot show is not run, since it would look like one that nothing notices: InputError unless it `shows`.
inline void need(const Options& o, bool shows, const std::string& what) {
  if (!shows) throw InputError("--sabotage " + o.sabotage + " does nothing without " + what);
}

// The one called so among a lesson's. InputError, listing the names, if there is none.
template <typename Sabotage>
[[nodiscard]] const Sabotage& find_by_name(const std::vector<Sabotage>& all, const std::string& name) {
  std::string known;
  for (const Sabotage& s : all) {
    if (s.name == name) return s;
    known += (known.empty() ? "" : ", ") + s.name;
  }
  throw InputError("--sabotage " + name + " is not known; use one of: " + known);
}

}  // namespace ref5d
